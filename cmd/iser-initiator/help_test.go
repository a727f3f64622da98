package main

import (
	"regexp"
	"strings"
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

// TestHelpNamesOptionsOfURLs: the help has each option that a URL takes.
func TestHelpNamesOptionsOfURLs(t *testing.T) {
	_, errs, code := run(t, "info", "iscsi://127.0.0.1/iqn.2026-11.test:a/0?nosuch")
	_, list, ok := strings.Cut(errs, "is not known: want ")
	if code != exitUsage || !ok {
		t.Fatalf("exit %d, %s", code, errs)
	}
	_, help, _ := strings.Cut(rootLong, `Options after "?"`)
	for _, option := range strings.FieldsFunc(strings.ReplaceAll(list, " or ", ", "), func(r rune) bool { return strings.ContainsRune(", \n", r) }) {
		if !regexp.MustCompile(`\b` + option + `\b`).MatchString(help) {
			t.Errorf("the help does not have %s", option)
		}
	}
}
