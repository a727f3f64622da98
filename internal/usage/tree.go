package usage

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// Tree makes wrong arguments of every command below root usage errors that show
// the usage, flags that are missing or exclude each other too, and commands that are
// not there errors at all: cobra answers "program group typo" with the group's help and
// success.
func Tree(root *cobra.Command) {
	if !root.HasParent() {
		// What cobra adds by itself it adds later, and it would be left out.
		root.InitDefaultHelpCmd()
		root.InitDefaultCompletionCmd()
	}
	for _, c := range root.Commands() {
		switch check := c.Args; {
		case c.Name() == "help" && !root.HasParent():
			c.Args = topic
		case c.HasSubCommands() && !c.Runnable():
			c.Args, c.RunE, c.SuggestionsMinimumDistance = cobra.ArbitraryArgs, group, 2
		case check != nil:
			c.Args = func(c *cobra.Command, args []string) error {
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
	hint := ""
	if near := c.SuggestionsFor(args[0]); len(near) > 0 {
		hint = fmt.Sprintf(" (did you mean %s?)", strings.Join(near, ", "))
	}
	return Errorf("%q is not a command of %s%s; %s --help lists them", args[0], c.CommandPath(), hint, c.CommandPath())
}

// topic checks what help is asked about.
func topic(c *cobra.Command, args []string) error {
	_, _, err := c.Root().Find(args)
	if err != nil {
		return Errorf("%w; %s --help lists them", err, c.Root().Name())
	}
	return nil
}

// validate is what cobra does before a command runs, whose errors would be like any
// other there.
func validate(c *cobra.Command, _ []string) error {
	err := c.ValidateRequiredFlags()
	if err == nil {
		err = c.ValidateFlagGroups()
	}
	if err != nil {
		err = Errorf("%w; see %s --help", err, c.CommandPath())
	}
	return err
}
