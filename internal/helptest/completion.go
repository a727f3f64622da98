package helptest

import (
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"softiser/internal/usage"
)

// Completion fails where the shell would offer something by accident: for a flag of which
// nothing is said, which would be every file, and for an argument of such a command. What is
// said of flags (said, as the program gives it to usage.Complete) has to belong to one, and
// words that are offered for it have to be in its help. root is the whole tree, completed.
func Completion(t *testing.T, root *cobra.Command, said map[string]usage.Values) {
	t.Helper()
	for _, name := range usage.Undecided(root) {
		t.Errorf("%s: nothing is said of its values, so that the shell offers files", name)
	}
	used := map[string]bool{}
	var walk func(*cobra.Command)
	walk = func(c *cobra.Command) {
		if c.Runnable() && !c.HasSubCommands() && c.ValidArgsFunction == nil && c.ValidArgs == nil {
			t.Errorf("%s: nothing is said of its arguments, so that the shell offers files", c.CommandPath())
		}
		c.NonInheritedFlags().VisitAll(func(f *pflag.Flag) {
			used[f.Name] = true
			if f.NoOptDefVal != "" {
				return
			}
			offered(t, c, f, said[f.Name].Words)
		})
		for _, s := range c.Commands() {
			walk(s)
		}
	}
	walk(root)
	for name := range said {
		if !used[name] {
			t.Errorf("no command has the flag --%s", name)
		}
	}
}

// offered checks what the shell offers for an empty value, where these are the words for it.
func offered(t *testing.T, c *cobra.Command, f *pflag.Flag, fixed []string) {
	t.Helper()
	complete, ok := c.GetFlagCompletionFunc(f.Name)
	if !ok {
		return
	}
	words, directive := complete(c, nil, "")
	if directive&(cobra.ShellCompDirectiveFilterFileExt|cobra.ShellCompDirectiveFilterDirs) != 0 {
		return
	}
	help := f.Usage + " " + f.Value.Type()
	for _, w := range fixed {
		w = strings.TrimRight(w, ":/=")
		if slices.Contains(words, w) && !strings.Contains(help, w) && !strings.Contains(w, ":") { // no address
			t.Errorf("%s --%s: %q is offered, and its help does not know it: %s", c.CommandPath(), f.Name, w, help)
		}
	}
	// The words of a help that lists them have to be there: "auto, on or off".
	if len(words) == 0 && directive&cobra.ShellCompDirectiveNoFileComp != 0 && strings.HasPrefix(f.Value.Type(), "string") && lists(f.Usage) {
		t.Errorf("%s --%s: nothing is offered of what its help lists: %s", c.CommandPath(), f.Name, f.Usage)
	}
}

// lists reports whether a help has an enumeration of words: "…: a, b or c".
func lists(help string) bool {
	_, after, ok := strings.Cut(help, ": ")
	if !ok {
		after = help
	}
	before, _, ok := strings.Cut(after, " or ")
	if !ok {
		return false
	}
	for part := range strings.SplitSeq(before, ", ") {
		if strings.ContainsAny(part, " ()$") {
			return false
		}
	}
	return true
}
