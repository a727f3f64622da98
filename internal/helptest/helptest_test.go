package helptest

import (
	"slices"
	"testing"

	"github.com/spf13/cobra"
)

func TestCalls(t *testing.T) {
	got := calls("zcat x | p write --to 'a b' # p says so\n", "p")
	if len(got) != 1 || !slices.Equal(got[0], []string{"write", "--to", "a b"}) {
		t.Errorf("%q", got)
	}
	if got := calls("p a && p b || p c", "p"); len(got) != 3 || got[2][0] != "c" {
		t.Errorf("%q", got)
	}
	if got := calls("p a 3>ready 2>log >/dev/null & q --entrypoint p b", "p"); len(got) != 1 || !slices.Equal(got[0], []string{"a"}) {
		t.Errorf("%q", got)
	}
}

func TestParse(t *testing.T) {
	root := func() *cobra.Command {
		p := &cobra.Command{Use: "p"}
		s := &cobra.Command{Use: "sub", Args: cobra.ExactArgs(1), Run: func(*cobra.Command, []string) {}}
		s.Flags().Int("n", 0, "")
		p.AddCommand(s)
		return p
	}
	if err := parse(root(), []string{"sub", "--n=3", "x"}); err != nil {
		t.Error(err)
	}
	for _, bad := range [][]string{{"sub"}, {"sub", "--m", "x"}, {"sub", "--n=z", "x"}, {"other"}} {
		if err := parse(root(), bad); err == nil {
			t.Errorf("%q accepted", bad)
		}
	}
}
