package main

import (
	"strings"
	"testing"

	"softiser/internal/helptest"
	"softiser/lvm/cli"
)

func TestExamples(t *testing.T) { helptest.Examples(t, newRoot) }

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
