package usage

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// Tree makes wrong arguments of every command below root, and empty ones, usage errors that show
// the usage, flags that are missing or exclude each other too, and commands that are
// not there errors at all: cobra answers "program group typo" with the group's help and
// success.
func Tree(root *cobra.Command) {
	if !root.HasParent() {
		// What cobra adds by itself it adds later, and it would be left out.
		root.InitDefaultHelpCmd()
		root.InitDefaultCompletionCmd()
		anchorZsh(root)
	}
	for _, c := range root.Commands() {
		switch check := c.Args; {
		case c.Name() == "help" && !root.HasParent():
			c.Args = topic
		case c.HasSubCommands() && !c.Runnable():
			c.Args, c.RunE = cobra.ArbitraryArgs, group
		default:
			if check == nil {
				check = cobra.ArbitraryArgs
			}
			c.Args = func(c *cobra.Command, args []string) error {
				if i := slices.Index(args, ""); i >= 0 { // a variable that a script has not set
					return Errorf("argument %d is empty: %s", i+1, c.UseLine())
				}
				err := check(c, args)
				if err != nil && !Is(err) {
					err = Errorf("%w; usage: %s", err, c.UseLine())
				}
				return err
			}
		}
		if c.Runnable() {
			c.PreRunE = validate
		}
		Tree(c)
	}
}

// group is what a command does that only has commands below it.
func group(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return c.Help()
	}
	return NoCommand(c, args)
}

// NoCommand checks the arguments of a command that has commands below it: what comes after its name is none of them.
func NoCommand(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	c.SuggestionsMinimumDistance = 2
	hint := ""
	if near := c.SuggestionsFor(args[0]); len(near) > 0 {
		hint = fmt.Sprintf(" (did you mean %s?)", strings.Join(near, ", "))
	}
	return Errorf("%q is not a command of %s%s; %s --help lists them", args[0], c.CommandPath(), hint, c.CommandPath())
}

// topic checks what help is asked about.
func topic(c *cobra.Command, args []string) error {
	found, rest, err := c.Root().Find(args)
	if err != nil {
		return Errorf("%w; %s --help lists them", err, c.Root().Name())
	}
	return NoCommand(found, rest)
}

// validate is what cobra does before a command runs, whose errors would be like any
// other there.
func validate(c *cobra.Command, _ []string) error {
	err := c.ValidateRequiredFlags()
	if err == nil {
		err = c.ValidateFlagGroups()
	}
	if err != nil {
		err = Errorf("%s; see %s --help", plainly(err.Error()), c.CommandPath())
	}
	return err
}

// What cobra says of flags, and what a user of it is told.
var flagTexts = []struct {
	said *regexp.Regexp
	told string // has the names
}{
	{regexp.MustCompile(`^required flag\(s\) (.*) not set$`), "%s is missing"},
	{regexp.MustCompile(`^at least one of the flags in the group \[(.*)\] is required$`), "one of %s is missing"},
	{regexp.MustCompile(`^if any flags in the group \[.*\] are set none of the others can be; \[(.*)\] were all set$`), "%s exclude each other"},
	{regexp.MustCompile(`^if any flags in the group \[.*\] are set they must all be set; missing \[(.*)\]$`), "%s is missing, without which the others mean nothing"},
}

// plainly says what cobra says of flags in the form in which they are typed.
func plainly(text string) string {
	for _, t := range flagTexts {
		if m := t.said.FindStringSubmatch(text); m != nil {
			var names []string
			for _, n := range strings.FieldsFunc(m[1], func(r rune) bool { return strings.ContainsRune(`", `, r) }) {
				names = append(names, "--"+n)
			}
			told := t.told
			if rest, ok := strings.CutPrefix(told, "%s is"); ok && len(names) > 1 {
				told = "%s are" + rest
			}
			return fmt.Sprintf(told, strings.Join(names, ", "))
		}
	}
	return text
}
