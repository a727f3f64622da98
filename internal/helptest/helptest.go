// Package helptest checks the help of a program's commands.
package helptest

import (
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// Examples fails when a command that runs, or has others, has no example, or when a line of an
// example that calls the program does not parse: a command that is not there, a
// flag that has gone, a wrong number of arguments. root returns a fresh command
// tree each time, because parsing sets flags.
func Examples(t *testing.T, root func() *cobra.Command) {
	t.Helper()
	var walk func(*cobra.Command)
	walk = func(c *cobra.Command) {
		if c.Name() == "completion" || c.Name() == "help" || c.Hidden {
			return
		}
		if (c.Runnable() || c.HasSubCommands()) && c.Example == "" {
			t.Errorf("%s has no example", c.CommandPath())
		}
		for line := range strings.Lines(strings.ReplaceAll(c.Example, "\\\n", " ")) {
			for _, args := range calls(line, root().Name()) {
				if err := parse(root(), args); err != nil {
					t.Errorf("%s: the example %q: %v", c.CommandPath(), strings.TrimSpace(line), err)
				}
			}
		}
		for _, s := range c.Commands() {
			walk(s)
		}
	}
	walk(root())
}

// parse is what Execute does before it runs the command.
func parse(root *cobra.Command, args []string) error {
	c, rest, err := root.Find(args)
	if err != nil {
		return err
	}
	if c.DisableFlagParsing {
		return nil
	}
	if err := c.ParseFlags(rest); err != nil {
		return err
	}
	return c.ValidateArgs(c.Flags().Args())
}

// calls returns the arguments of each call of program in a line of shell.
func calls(line, program string) (all [][]string) {
	var args []string
	in, before := false, ""
	for _, w := range words(line) {
		last := before
		before = w
		switch {
		case len(w) > 1 && redirection.MatchString(w):
		case w == "|" || w == "||" || w == "&&" || w == ">" || w == "2>" || w == "&" || strings.HasPrefix(w, "#"):
			if in {
				all = append(all, args)
			}
			in, args = false, nil
			if strings.HasPrefix(w, "#") {
				return all
			}
		case !in && w == program && !strings.HasPrefix(last, "-"): // else it is the value of a flag of another program
			in = true
		case in:
			args = append(args, w)
		}
	}
	if in {
		all = append(all, args)
	}
	return all
}

// redirection is a word with which the shell sends output elsewhere.
var redirection = regexp.MustCompile(`^[0-9]*[<>]+[^<> ]`)

// words splits a line at blanks; quotes keep a word together.
func words(line string) (list []string) {
	var b strings.Builder
	quote, some := rune(0), false
	for _, r := range line {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote == 0 && (r == '\'' || r == '"'):
			quote, some = r, true
		case quote == 0 && (r == ' ' || r == '\t' || r == '\n'):
			if some {
				list = append(list, b.String())
			}
			b.Reset()
			some = false
		default:
			b.WriteRune(r)
			some = true
		}
	}
	if some {
		list = append(list, b.String())
	}
	return list
}
