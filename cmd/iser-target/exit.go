package main

import (
	"github.com/spf13/cobra"

	"softiser/internal/usage"
)

// Exit codes, documented in the help text.
const (
	exitFailure  = 1 // what was asked for could not be done
	exitUsage    = 2 // flags or configuration are wrong
	exitDegraded = 3 // check: the configuration is right, but a volume cannot be opened; reload: not all is in force
	exitNoTarget = 4 // status and its companions: no target answers on the admin socket
)

// exitError carries an exit code.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }

func (e *exitError) Unwrap() error { return e.err }

func exit(code int, err error) error {
	if err == nil {
		return nil
	}
	return &exitError{code, err}
}

// exactly is cobra.ExactArgs with the exit code for wrong usage.
func exactly(n int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) > n:
			return usage.Errorf("%q is one argument too many; see %s --help", args[n], cmd.CommandPath())
		case len(args) < n:
			return usage.Errorf("%d of %d arguments are missing: %s", n-len(args), n, cmd.UseLine())
		}
		return nil
	}
}
