package main

import (
	"strings"
	"testing"

	"softiser/internal/helptest"
	"softiser/lvm/cli"
)

func TestExamples(t *testing.T) { helptest.Examples(t, newRoot) }

// TestDocuments: what documents have users type can be typed.
func TestDocuments(t *testing.T) { helptest.Documents(t, "../..", newRoot, 60) }

// TestWrongUsage: every command ends with the exit code that the help of iser-target has for it.
func TestWrongUsage(t *testing.T) {
	helptest.WrongUsage(t, newRoot(), func(args ...string) (int, string) { return command(t, args...) }, func(path string) int {
		switch {
		case path == "lvm":
			return cli.ExitNoCommand
		case strings.HasPrefix(path, "lvm "):
			return cli.ExitUsage
		}
		return exitUsage
	})
}
