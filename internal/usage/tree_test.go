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
