package usage

import (
	"errors"
	"io"
	"slices"
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
		{"group leaf EMPTY", "argument 1 is empty: p group leaf"},
		{"help group leaf", ""},
		{"help group leef", "did you mean leaf?"},
		{"help grop", "is not a command of p (did you mean group?)"},
		{"grop", "is not a command of p (did you mean group?); p --help lists them"},
	} {
		root := &cobra.Command{Use: "p", SilenceErrors: true, SilenceUsage: true, Args: NoCommand, Run: func(*cobra.Command, []string) {}}
		g := &cobra.Command{Use: "group"}
		run := func(*cobra.Command, []string) {}
		g.AddCommand(&cobra.Command{Use: "leaf", Args: cobra.ExactArgs(1), Run: run},
			&cobra.Command{Use: "own", Args: func(*cobra.Command, []string) error { return Errorf("own words") }, Run: run})
		root.AddCommand(g)
		root.SetFlagErrorFunc(FlagError)
		Tree(root)
		args := strings.Fields(c.args)
		if i := slices.Index(args, "EMPTY"); i >= 0 {
			args[i] = ""
		}
		root.SetArgs(args)
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

// A value that a flag does not take is answered with what it takes, not with how Go's parsers put it.
func TestValues(t *testing.T) {
	for args, want := range map[string]string{
		"--n x":                           `invalid argument "x" for "--n" flag: want a whole number; see p --help`,
		"--n 1.5":                         "want a whole number",
		"--n 1" + strings.Repeat("0", 30): "the number is too large",
		"--wait 5":                        `invalid argument "5" for "--wait" flag: want a time with its unit, such as 500ms, 5s or 2m; see p --help`,
		"--on=maybe":                      "want true or false",
		"--own x":                         `invalid argument "x" for "--own" flag: own words; see p --help`,
		"--spin -1s":                      `invalid argument "-1s" for "--spin" flag: own words; see p --help`,
	} {
		p := &cobra.Command{Use: "p", SilenceErrors: true, SilenceUsage: true, Run: func(*cobra.Command, []string) {}}
		p.SetFlagErrorFunc(FlagError)
		p.Flags().Int("n", 0, "")
		p.Flags().Duration("wait", 0, "")
		p.Flags().Bool("on", false, "")
		p.Flags().Var(ownWords{}, "own", "")
		p.Flags().Var(ownWords{"duration"}, "spin", "")
		p.SetArgs(strings.Fields(args))
		if err := p.Execute(); err == nil || !Is(err) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
	}
}

type ownWords struct{ kind }

func (ownWords) Set(string) error { return errors.New("own words") }

func TestSeveralMissing(t *testing.T) {
	if got, want := plainly(`required flag(s) "key", "type" not set`), "--key, --type are missing"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// What is wrong with flags together is said in the form in which they are typed.
func TestFlagsTogether(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"", "--need is missing; see p leaf --help"},
		{"--need 1", "one of --one, --other is missing; see"},
		{"--need 1 --one 1 --other 1", "--one, --other exclude each other; see"},
		{"--need 1 --one 1 --from 1", "--to is missing, without which the others mean nothing; see"},
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
