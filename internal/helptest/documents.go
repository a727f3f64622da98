package helptest

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// Documents fails where a text that users read calls the program as it cannot be called: a command that is not there,
// a flag that has gone. In blocks of commands the number of arguments counts as well; what a sentence names may leave
// arguments and values out. repository is where README.md is, root that of Examples. At least so many calls have to be
// found, so that the test does not pass because nothing was read.
func Documents(t *testing.T, repository string, root func() *cobra.Command, least int) {
	t.Helper()
	found, tree := 0, root() // one for all: nothing is run, and making it takes longer than all the rest
	for _, name := range texts(t, repository) {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		blocks, spans := commands(string(text))
		if filepath.Ext(name) != ".md" {
			blocks, spans = comments(string(text)), nil
		}
		for _, line := range blocks {
			for _, args := range calls(line, tree.Name()) {
				found++
				if err := parse(tree, args); err != nil {
					t.Errorf("%s: %s: %v", name, strings.TrimSpace(line), err)
				}
			}
		}
		for _, span := range spans {
			if span != tree.Name() && !strings.HasPrefix(span, tree.Name()+" ") { // it is named in a message, say
				continue
			}
			for _, args := range calls(span, tree.Name()) {
				found++
				if err := named(tree, args); err != "" {
					t.Errorf("%s: `%s`: %s", name, span, err)
				}
			}
		}
	}
	if found < least {
		t.Errorf("only %d calls of %s were found", found, tree.Name())
	}
}

// texts are the files that users read: Markdown, example configurations, units.
func texts(t *testing.T, repository string) (files []string) {
	t.Helper()
	for _, from := range []string{"README.md", "CHANGELOG.md", "docs", "packaging", "config/examples"} {
		err := filepath.WalkDir(filepath.Join(repository, from), func(path string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() && slices.Contains([]string{".md", ".yaml", ".service", ".socket", ".conf"}, filepath.Ext(path)) {
				files = append(files, path)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return files
}

// comments are the commands in the comments of a file: what is indented by three blanks there.
func comments(text string) (lines []string) {
	for line := range strings.Lines(strings.ReplaceAll(text, "\\\n#", " ")) {
		if command, is := strings.CutPrefix(line, "#   "); is {
			command, _, _ = strings.Cut(strings.TrimSpace(command), "   ") // behind which it is explained
			lines = append(lines, command)
		}
	}
	return lines
}

var (
	inlineCode = regexp.MustCompile("`([^`]+)`")
	fence      = regexp.MustCompile("^ *```(.*)$")
)

// commands splits Markdown into the lines of its blocks of commands and what its sentences have as code. Of a block
// that shows a terminal ("console", or one with a line that begins with "$ ") these are the lines behind "$ ".
func commands(text string) (blocks, spans []string) {
	var block []string
	var prose strings.Builder
	in, terminal := false, false
	end := func() {
		for _, line := range strings.Split(strings.ReplaceAll(strings.Join(block, "\n"), "\\\n", " "), "\n") {
			typed, is := strings.CutPrefix(line, "$ ")
			if is == terminal {
				blocks = append(blocks, typed)
			}
		}
		block = nil
	}
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if m := fence.FindStringSubmatch(line); m != nil {
			if in {
				end()
			}
			in, terminal = !in, m[1] == "console"
			continue
		}
		switch {
		case in:
			terminal = terminal || strings.HasPrefix(line, "$ ")
			block = append(block, line)
		case strings.HasPrefix(line, "    "):
			blocks = append(blocks, strings.TrimSpace(line))
		default:
			prose.WriteString(line + "\n")
		}
	}
	for _, m := range inlineCode.FindAllStringSubmatch(strings.ReplaceAll(prose.String(), "\n", " "), -1) {
		spans = append(spans, m[1])
	}
	return blocks, spans
}

// named says what is wrong with a call in a sentence, "" if nothing: its command and its flags have to be there.
func named(root *cobra.Command, args []string) string {
	c, rest, err := root.Find(args)
	if err != nil {
		return err.Error()
	}
	if c.HasSubCommands() && len(rest) > 0 && !strings.HasPrefix(rest[0], "-") && rest[0] != "…" {
		return rest[0] + " is no command of " + c.CommandPath()
	}
	for _, w := range rest {
		name, _, _ := strings.Cut(w, "=")
		if name, is := strings.CutPrefix(name, "--"); is && name != "" && name != "help" && !hasFlag(c, name) {
			return "--" + name + " is no flag of " + c.CommandPath()
		}
	}
	return ""
}

// hasFlag reports whether the command, or where it does nothing by itself one below it, has the flag.
func hasFlag(c *cobra.Command, name string) bool {
	if c.Flag(name) != nil || !c.HasParent() && name == "version" {
		return true
	}
	return c.HasSubCommands() && slices.ContainsFunc(c.Commands(), func(sub *cobra.Command) bool { return hasFlag(sub, name) })
}
