package usage

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// FlagError makes an error of the flag parser a usage error that says where the help
// is, and which flag a mistyped one may have been meant to be. It is what a root command
// gives to SetFlagErrorFunc.
func FlagError(cmd *cobra.Command, err error) error {
	if args := cmd.Flags().Args(); cmd.HasSubCommands() && len(args) > 0 {
		return group(cmd, args) // the flags are those of a command whose name is mistyped
	}
	hint := ""
	var unknown *pflag.NotExistError
	if errors.As(err, &unknown) {
		if near := nearestFlag(cmd, unknown.GetSpecifiedName()); near != "" {
			hint = " (did you mean --" + near + "?)"
		}
	}
	if bad, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		if want := plainValue(bad); want != "" {
			return Errorf("invalid argument %q for %q flag: %s; see %s --help", bad.GetValue(), "--"+bad.GetFlag().Name, want, cmd.CommandPath())
		}
	}
	return Errorf("%w%s; see %s --help", err, hint, cmd.CommandPath())
}

// plainValue says what a flag takes of which Go's parsers say only how they failed; "" of others.
func plainValue(bad *pflag.InvalidValueError) string {
	kind := bad.GetFlag().Value.Type()
	number, isNumber := errors.AsType[*strconv.NumError](bad)
	isNumber = isNumber && slices.Contains(numbers, kind)
	switch {
	case kind == "duration" && strings.HasPrefix(fmt.Sprint(bad.Unwrap()), "time: "): // of package time; a value of its own says more
		return "want a time with its unit, such as 500ms, 5s or 2m"
	case kind == "bool":
		return "want true or false"
	case isNumber && errors.Is(number.Err, strconv.ErrRange):
		return "the number is too large"
	case isNumber && kind == "float64":
		return "want a number"
	case isNumber:
		return "want a whole number"
	}
	return ""
}

// nearestFlag returns the flag that a mistyped name may have been meant to be.
func nearestFlag(cmd *cobra.Command, name string) string {
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden && f.Deprecated == "" {
			names = append(names, f.Name)
		}
	})
	return Nearest(name, names)
}

// Nearest returns the first of names that is a typing mistake or two away from name,
// "" if there is none. One that begins with it is as good.
func Nearest(name string, names []string) (near string) {
	best := 3
	for _, n := range names {
		d := distance(name, n)
		if len(name) > 2 && strings.HasPrefix(n, name) {
			d = 1
		}
		if d < best {
			best, near = d, n
		}
	}
	return near
}

// distance counts the letters that have to be put in, left out or replaced to make one
// word of the other.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		diagonal := row[0]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			diagonal, row[j] = row[j], min(row[j]+1, row[j-1]+1, diagonal+cost)
		}
	}
	return row[len(b)]
}
