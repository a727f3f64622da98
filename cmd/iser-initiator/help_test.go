package main

import (
	"testing"

	"softiser/internal/helptest"
)

func TestExamples(t *testing.T) { helptest.Examples(t, root) }

// TestDocuments: what documents have users type can be typed.
func TestDocuments(t *testing.T) { helptest.Documents(t, "../..", root, 60) }

// TestWrongUsage: every command ends with the exit code that the help of iser-initiator has for it.
func TestWrongUsage(t *testing.T) {
	helptest.WrongUsage(t, root(), func(args ...string) (int, string) {
		_, errs, code := run(t, args...)
		return code, errs
	}, func(string) int { return exitUsage })
}
