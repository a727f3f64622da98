package usage

import (
	"io"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

func TestTree(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"group leaf x", ""},
		{"group", ""},
		{"group leef", `did you mean leaf?`},
		{"group leef -L 1 --long", `"leef" is not a command of p group (did you mean leaf?)`},
		{"group -L", "unknown shorthand flag"},
		{"group other x", `"other" is not a command of p group; p group --help lists them`},
		{"group leaf", "usage: p group leaf"},
		{"group own", "own words"},
	} {
		root := &cobra.Command{Use: "p", SilenceErrors: true, SilenceUsage: true}
		g := &cobra.Command{Use: "group"}
		run := func(*cobra.Command, []string) {}
		g.AddCommand(&cobra.Command{Use: "leaf", Args: cobra.ExactArgs(1), Run: run},
			&cobra.Command{Use: "own", Args: func(*cobra.Command, []string) error { return Errorf("own words") }, Run: run})
		root.AddCommand(g)
		root.SetFlagErrorFunc(FlagError)
		Tree(root)
		root.SetArgs(strings.Fields(c.args))
		root.SetOut(io.Discard)
		err := root.Execute()
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", c.args, err)
		case c.want != "" && (err == nil || !Is(err) || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: %v, want %q", c.args, err, c.want)
		}
	}
}

// What is wrong with flags together is said in the form in which they are typed.
func TestFlagsTogether(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"", "--need is missing; see p leaf --help"},
		{"--need 1", "one of --one, --other is missing; see"},
		{"--need 1 --one 1 --other 1", "--one, --other exclude each other; see"},
		{"--need 1 --one 1 --from 1", "--to is missing, which belongs to what is given; see"},
		{"--need 1 --one 1", ""},
	} {
		root := &cobra.Command{Use: "p", SilenceErrors: true, SilenceUsage: true}
		leaf := &cobra.Command{Use: "leaf", Run: func(*cobra.Command, []string) {}}
		for _, n := range []string{"need", "one", "other", "from", "to"} {
			leaf.Flags().String(n, "", "")
		}
		if err := leaf.MarkFlagRequired("need"); err != nil {
			t.Fatal(err)
		}
		leaf.MarkFlagsOneRequired("one", "other")
		leaf.MarkFlagsMutuallyExclusive("one", "other")
		leaf.MarkFlagsRequiredTogether("from", "to")
		root.AddCommand(leaf)
		Tree(root)
		root.SetArgs(append([]string{"leaf"}, strings.Fields(c.args)...))
		err := root.Execute()
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", c.args, err)
		case c.want != "" && (!Is(err) || !strings.HasPrefix(err.Error(), c.want)):
			t.Errorf("%s: %v, want %q", c.args, err, c.want)
		}
	}
}
