// Package mantest makes the man pages of a program, for its test and for packages: the
// programs themselves do not carry what that takes.
package mantest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"github.com/spf13/pflag"
)

// Write makes a page for the command and for each below it, in dir, or only to look at them
// when that is "". They bear the date of SOURCE_DATE_EPOCH, the beginning of time without it, so that
// the same sources make the same pages. mandoc has to understand them, where it is installed.
func Write(t *testing.T, root *cobra.Command, dir, source string) {
	t.Helper()
	if dir == "" {
		dir = t.TempDir()
	}
	var at int64
	if s := os.Getenv("SOURCE_DATE_EPOCH"); s != "" {
		var err error
		if at, err = strconv.ParseInt(s, 10, 64); err != nil {
			t.Fatalf("SOURCE_DATE_EPOCH: %v", err)
		}
	}
	date := time.Unix(at, 0).UTC()
	root.DisableAutoGenTag = true
	if err := doc.GenManTree(root, &doc.GenManHeader{Section: "1", Date: &date, Source: source, Manual: "softiser"}, dir); err != nil {
		t.Fatal(err)
	}
	pages, err := filepath.Glob(filepath.Join(dir, root.Name()+"*.1"))
	if err != nil {
		t.Fatal(err)
	}
	if n := commands(root); len(pages) != n {
		t.Errorf("%d pages for %d commands", len(pages), n)
	}
	for _, p := range pages {
		b, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{".TH ", ".SH NAME", ".SH SYNOPSIS"} {
			if !strings.Contains(string(b), want) {
				t.Errorf("%s has no %s", filepath.Base(p), want)
			}
		}
	}
	flagsDocumented(t, root, dir)
	if mandoc, err := exec.LookPath("mandoc"); err == nil {
		out, err := exec.CommandContext(t.Context(), mandoc, append([]string{"-T", "lint", "-W", "error"}, pages...)...).CombinedOutput()
		if err != nil {
			t.Errorf("mandoc: %v\n%s", err, out)
		}
	}
}

// flagsDocumented fails for flags of a command, those of its parents among them, that its page does not have.
func flagsDocumented(t *testing.T, c *cobra.Command, dir string) {
	t.Helper()
	if !c.IsAvailableCommand() && c.HasParent() {
		return
	}
	page, err := os.ReadFile(filepath.Join(dir, strings.ReplaceAll(c.CommandPath(), " ", "-")+".1"))
	if err != nil {
		t.Error(err)
		return
	}
	text := strings.ReplaceAll(string(page), `\`, "")
	check := func(f *pflag.Flag) {
		if !f.Hidden && f.Deprecated == "" && !strings.Contains(text, "--"+f.Name) {
			t.Errorf("%s: the man page does not have --%s", c.CommandPath(), f.Name)
		}
	}
	c.NonInheritedFlags().VisitAll(check)
	c.InheritedFlags().VisitAll(check)
	for _, sub := range c.Commands() {
		flagsDocumented(t, sub, dir)
	}
}

// commands counts those that have a page.
func commands(c *cobra.Command) int {
	n := 1
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() && !sub.IsAdditionalHelpTopicCommand() {
			n += commands(sub)
		}
	}
	return n
}
