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

// TestHelpOfSockets: the help of a command that reads a configuration says that it finds the admin socket there.
func TestHelpOfSockets(t *testing.T) {
	found := 0
	for _, c := range newRoot().Commands() {
		socket := c.Flag("socket")
		if c.Flag("config") == nil || socket == nil {
			continue
		}
		if found++; !strings.Contains(socket.Usage, "admin.socket of the configuration") {
			t.Errorf("%s --socket: %s", c.Name(), socket.Usage)
		}
	}
	if found != 3 { // serve, check, doctor
		t.Errorf("%d commands have both flags", found)
	}
}

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
