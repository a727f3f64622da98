// Package mantest makes the man pages of a program, for its test and for packages: the
// programs themselves do not carry what that takes.
package mantest

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
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
	tables := map[string][]string{}
	keepTables(root, tables)
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
	for name, rows := range tables {
		tablesKept(t, name, rows, dir)
	}
	if mandoc, err := exec.LookPath("mandoc"); err == nil {
		out, err := exec.CommandContext(t.Context(), mandoc, append([]string{"-T", "lint", "-W", "error"}, pages...)...).CombinedOutput()
		if err != nil {
			t.Errorf("mandoc: %v\n%s", err, out)
		}
	}
}

// row is a line of a table in a help text: it is indented, or begins with a number and what that stands for.
var row = regexp.MustCompile(`^( +|[0-9]+ {2,})\S`)

// keepTables has the tables in the help of the command, and of those below it, come through Markdown, of which cobra
// makes the pages, as blocks of code; else their lines are filled like any text. It notes the rows of each command.
func keepTables(c *cobra.Command, rows map[string][]string) {
	var b strings.Builder
	before := "" // what the line before was: "", "text" or "row"
	for line := range strings.Lines(c.Long) {
		kind := "text"
		switch {
		case strings.TrimSpace(line) == "":
			kind = ""
		case row.MatchString(line):
			kind = "row"
			rows[c.CommandPath()] = append(rows[c.CommandPath()], strings.TrimRight(line, "\n"))
			line = "    " + line
		}
		if before != "" && kind != "" && before != kind {
			b.WriteByte('\n')
		}
		b.WriteString(line)
		before = kind
	}
	c.Long = b.String()
	for _, sub := range c.Commands() {
		keepTables(sub, rows)
	}
}

// tablesKept fails for rows that are not lines of their own in the page of a command.
func tablesKept(t *testing.T, command string, rows []string, dir string) {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(dir, strings.ReplaceAll(command, " ", "-")+".1"))
	if err != nil {
		t.Error(err)
		return
	}
	var examples strings.Builder // what is printed as it stands
	for part := range strings.SplitSeq(strings.ReplaceAll(string(page), `\`, ""), ".EX\n") {
		before, _, ok := strings.Cut(part, ".EE")
		if ok {
			examples.WriteString("\n" + before)
		}
	}
	for _, r := range rows {
		if !strings.Contains(examples.String(), "\n"+r+"\n") {
			t.Errorf("%s: the man page does not have the line %q of a table", command, r)
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
