package cli

import "softiser/internal/usage"

// lvm2's exit codes, which scripts that were written for it look at.
const (
	ExitNoCommand = 2 // there is no such command
	ExitUsage     = 3 // the command line is wrong
	ExitFailure   = 5 // what was asked for could not be done
)

// ExitCode returns lvm2's exit code for what a command returned.
func ExitCode(err error) int {
	switch {
	case err == nil:
		return 0
	case usage.Is(err):
		return ExitUsage
	}
	return ExitFailure
}
