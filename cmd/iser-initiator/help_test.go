package main

import (
	"testing"

	"softiser/internal/helptest"
)

func TestExamples(t *testing.T) { helptest.Examples(t, root) }

// TestWrongUsage: every command ends with the exit code that the help of iser-initiator has for it.
func TestWrongUsage(t *testing.T) {
	helptest.WrongUsage(t, root(), func(args ...string) (int, string) {
		_, errs, code := run(t, args...)
		return code, errs
	}, func(string) int { return exitUsage })
}
