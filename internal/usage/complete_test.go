package usage

import (
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// kind is a flag's value whose type says what it takes.
type kind string

func (kind) String() string   { return "" }
func (kind) Set(string) error { return nil }
func (k kind) Type() string   { return string(k) }

func TestComplete(t *testing.T) {
	root := &cobra.Command{Use: "p"}
	leaf := &cobra.Command{Use: "leaf", Run: func(*cobra.Command, []string) {}}
	root.AddCommand(leaf)
	root.PersistentFlags().String("crc", "", "")
	fs := leaf.Flags()
	for _, name := range []string{"algs", "input", "config", "dir", "name", "own", "missing"} {
		fs.String(name, "", "")
	}
	fs.Int("n", 0, "")
	fs.Bool("quiet", false, "")
	fs.Var(kind("a|b"), "which", "")
	fs.Var(kind("FILE"), "state", "")
	fs.Var(kind("SIZE[:N]"), "size", "")
	own := func(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return []cobra.Completion{"before"}, cobra.ShellCompDirectiveNoFileComp
	}
	if err := leaf.RegisterFlagCompletionFunc("own", own); err != nil {
		t.Fatal(err)
	}
	table := map[string]Values{
		"crc": {Words: []string{"required", "off"}}, "algs": {Words: []string{"md5", "sha1", "sha-256"}, List: true},
		"input": {Words: []string{"s3://"}, Files: true}, "config": {Endings: []string{"yaml"}}, "dir": {Folders: true}, "name": {}, "own": {Words: []string{"after"}},
	}
	Complete(root, table)
	if got := Undecided(root); !slices.Equal(got, []string{"p leaf --missing"}) {
		t.Errorf("undecided: %q", got)
	}
	const none, free = cobra.ShellCompDirectiveNoFileComp, cobra.ShellCompDirectiveDefault
	for _, c := range []struct {
		c          *cobra.Command
		flag, word string
		want       string
		directive  cobra.ShellCompDirective
	}{
		{root, "crc", "", "required off", none},
		{root, "crc", "o", "off", none},
		{leaf, "algs", "", "md5 sha1 sha-256", none},
		{leaf, "algs", "sha1,", "sha1,md5 sha1,sha-256", none},
		{leaf, "algs", "sha1,sha-", "sha1,sha-256", none},
		{leaf, "input", "", "s3://", free | cobra.ShellCompDirectiveNoSpace},
		{leaf, "input", "x", "", free},
		{leaf, "config", "", "yaml", cobra.ShellCompDirectiveFilterFileExt},
		{leaf, "dir", "", "", cobra.ShellCompDirectiveFilterDirs},
		{leaf, "name", "", "", none},
		{leaf, "own", "", "before", none},
		{leaf, "n", "", "", none},
		{leaf, "which", "", "a b", none},
		{leaf, "state", "", "", free},
		{leaf, "size", "", "", none},
	} {
		f, ok := c.c.GetFlagCompletionFunc(c.flag)
		if !ok {
			t.Errorf("--%s has no completion", c.flag)
			continue
		}
		got, directive := f(c.c, nil, c.word)
		if strings.Join(got, " ") != c.want || directive != c.directive {
			t.Errorf("--%s %q: %q, %v, want %q, %v", c.flag, c.word, got, directive, c.want, c.directive)
		}
	}
}

// TestZshKnowsFlags: an argument with a hyphen and an equals sign is no flag to zsh.
func TestZshKnowsFlags(t *testing.T) {
	for _, more := range [][]string{nil, {"--no-descriptions"}} {
		root := &cobra.Command{Use: "p"}
		root.AddCommand(&cobra.Command{Use: "leaf", Run: func(*cobra.Command, []string) {}})
		var out strings.Builder
		root.SetOut(&out)
		root.SetArgs(append([]string{"completion", "zsh"}, more...))
		Tree(root)
		if err := root.Execute(); err != nil {
			t.Fatal(err)
		}
		if script := out.String(); !strings.Contains(script, zshFlagAnchored) || strings.Contains(script, zshFlag) || strings.Contains(script, "__completeNoDesc") != (more != nil) {
			t.Errorf("completion zsh %q (cobra may write it otherwise by now):\n%s", more, script)
		}
	}
}

func TestArguments(t *testing.T) {
	one := Arguments(false, Values{Words: []string{"iser://"}}, Values{Files: true})
	more := Arguments(true, Values{}, Values{Words: []string{"x"}})
	for _, c := range []struct {
		f         cobra.CompletionFunc
		args      int
		want      string
		directive cobra.ShellCompDirective
	}{
		{one, 0, "iser://", cobra.ShellCompDirectiveNoSpace | cobra.ShellCompDirectiveNoFileComp},
		{one, 1, "", cobra.ShellCompDirectiveDefault},
		{one, 2, "", cobra.ShellCompDirectiveNoFileComp},
		{more, 0, "", cobra.ShellCompDirectiveNoFileComp},
		{more, 3, "x", cobra.ShellCompDirectiveNoFileComp},
	} {
		got, directive := c.f(nil, make([]string, c.args), "")
		if strings.Join(got, " ") != c.want || directive != c.directive {
			t.Errorf("argument %d: %q, %v, want %q, %v", c.args, got, directive, c.want, c.directive)
		}
	}
}
