package main

import (
	"testing"

	"softiser/internal/helptest"
)

func TestExamples(t *testing.T) { helptest.Examples(t, root) }
