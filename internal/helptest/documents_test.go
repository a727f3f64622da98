package helptest

import (
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

func TestCommandsOfDocuments(t *testing.T) {
	blocks, spans := commands("Say `p sub\n--n 3`, or:\n\n```sh run\np sub \\\n  --n=3 x\n```\n\n```console\n$ p sub x\np says so\n```\n\n```\n$ p a\np b\n```\n    p c   # indented\n`p d`")
	if want := []string{"p sub    --n=3 x", "p sub x", "p a", "p c   # indented"}; !slices.Equal(slices.DeleteFunc(blocks, func(s string) bool { return s == "" }), want) {
		t.Errorf("%q", blocks)
	}
	if want := []string{"p sub --n 3", "p d"}; !slices.Equal(spans, want) {
		t.Errorf("%q", spans)
	}
}

func TestNamed(t *testing.T) {
	root := func() *cobra.Command {
		p, g := &cobra.Command{Use: "p"}, &cobra.Command{Use: "group"}
		s := &cobra.Command{Use: "sub", Run: func(*cobra.Command, []string) {}}
		s.Flags().Int("n", 0, "")
		g.AddCommand(s)
		p.AddCommand(g)
		return p
	}
	for call, want := range map[string]string{
		"group sub --n": "", "group sub --n N": "", "--n": "", "group": "", "--version": "", "group sub --help": "",
		"group sub --m": "--m is no flag", "group other": "no command", "other": "unknown command",
	} {
		if got := named(root(), strings.Fields(call)); !strings.Contains(got, want) || (got == "") != (want == "") {
			t.Errorf("%s: %q, want %q", call, got, want)
		}
	}
}
