package usage

import (
	"bytes"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Values is what the shell offers for the value of a flag, or for an argument. The zero Values
// offers nothing, not even files: what is wanted is a number, or a name that nobody here knows.
type Values struct {
	Words   []string             // these; one that ends in ":", "/" or "=" is to be continued
	List    bool                 // several of Words, with commas between
	Files   bool                 // files, besides
	Endings []string             // files with one of these endings (without the dot), and no others
	Folders bool                 // folders
	Ask     cobra.CompletionFunc // whatever this says, and nothing of the above
}

// Complete has the shell offer something for every flag of the command and of those below it: what
// flags says of the name, unless it is a number or has been given completions before. Where neither
// is so, the type of the flag tells: "FILE" and "a|b" what they say, others nothing. A text of
// which nobody says anything is left alone, which means files to the shell; Undecided lists those.
func Complete(root *cobra.Command, flags map[string]Values) {
	walkValues(root, func(c *cobra.Command, f *pflag.Flag) {
		v, ok := flags[f.Name]
		switch {
		case slices.Contains(numbers, f.Value.Type()):
			v, ok = Values{}, true
		case !ok:
			v, ok = byType(f.Value.Type())
		}
		if ok && !decided(c, f) {
			if err := c.RegisterFlagCompletionFunc(f.Name, v.complete); err != nil {
				panic(err) // the flag is not there, or has been registered twice
			}
		}
	})
}

// What cobra's completion for zsh takes for a flag with a value, --flag=, and what is one: it would find "-disk=" in
// the argument my-disk=memory, too, and complete that to nonsense.
const (
	zshFlag         = `"${lastParam}" =~ '-.*='`
	zshFlagAnchored = `"${lastParam}" =~ '^-.*='`
)

// anchorZsh has the command "completion zsh" write a script that knows a flag from an argument.
func anchorZsh(root *cobra.Command) {
	zsh, _, err := root.Find([]string{"completion", "zsh"})
	if err != nil || zsh.Name() != "zsh" {
		return // of a tree without commands, which has no completion
	}
	zsh.RunE = func(c *cobra.Command, _ []string) error {
		write := root.GenZshCompletion
		if bare, _ := c.Flags().GetBool("no-descriptions"); bare {
			write = root.GenZshCompletionNoDesc
		}
		var script bytes.Buffer
		if err := write(&script); err != nil {
			return err
		}
		_, err := io.WriteString(c.OutOrStdout(), strings.Replace(script.String(), zshFlag, zshFlagAnchored, 1))
		return err
	}
}

// Undecided lists the flags for whose values nobody has said what the shell offers, each behind
// its command.
func Undecided(root *cobra.Command) (flags []string) {
	walkValues(root, func(c *cobra.Command, f *pflag.Flag) {
		if !decided(c, f) {
			flags = append(flags, c.CommandPath()+" --"+f.Name)
		}
	})
	return flags
}

// walkValues calls do for every flag that takes a value, at the command that defines it.
func walkValues(c *cobra.Command, do func(*cobra.Command, *pflag.Flag)) {
	for _, set := range []*pflag.FlagSet{c.LocalNonPersistentFlags(), c.PersistentFlags()} {
		set.VisitAll(func(f *pflag.Flag) {
			if f.NoOptDefVal == "" {
				do(c, f)
			}
		})
	}
	for _, sub := range c.Commands() {
		walkValues(sub, do)
	}
}

func decided(c *cobra.Command, f *pflag.Flag) bool {
	_, ok := c.GetFlagCompletionFunc(f.Name)
	return ok || f.Annotations[cobra.BashCompFilenameExt] != nil
}

// numbers are the types of flags that are numbers.
var numbers = []string{"int", "int64", "uint", "uint16", "uint32", "uint64", "float64", "count", "duration", "size"}

// byType is what the type of a flag, as --help shows it, says of its values.
func byType(name string) (Values, bool) {
	switch {
	case strings.HasPrefix(name, "string"): // anything
		return Values{}, false
	case name == "FILE":
		return Values{Files: true}, true
	case strings.Contains(name, "|") && !strings.ContainsAny(name, "[:"):
		return Values{Words: strings.Split(name, "|")}, true
	}
	return Values{}, true
}

// Arguments completes the arguments of a command, each by its Values, all further ones by the last if more is set.
func Arguments(more bool, each ...Values) cobra.CompletionFunc {
	return func(c *cobra.Command, args []string, word string) ([]cobra.Completion, cobra.ShellCompDirective) {
		i := len(args)
		if i >= len(each) {
			if !more {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			i = len(each) - 1
		}
		return each[i].complete(c, args, word)
	}
}

// complete is what cobra asks for, of the word that is being typed.
func (v Values) complete(c *cobra.Command, args []string, word string) (offered []cobra.Completion, directive cobra.ShellCompDirective) {
	if v.Ask != nil {
		return v.Ask(c, args, word)
	}
	before := ""
	if v.List {
		before = word[:strings.LastIndexByte(word, ',')+1]
	}
	given := strings.Split(before, ",")
	for _, w := range v.Words {
		if strings.HasPrefix(before+w, word) && !slices.Contains(given, w) {
			offered = append(offered, before+w)
		}
	}
	if slices.ContainsFunc(offered, func(w string) bool { return strings.ContainsAny(w[len(w)-1:], ":/=") }) {
		directive |= cobra.ShellCompDirectiveNoSpace
	}
	switch {
	case v.Files:
	case len(v.Endings) > 0:
		return v.Endings, cobra.ShellCompDirectiveFilterFileExt
	case v.Folders:
		return nil, cobra.ShellCompDirectiveFilterDirs
	default:
		directive |= cobra.ShellCompDirectiveNoFileComp
	}
	return offered, directive
}
