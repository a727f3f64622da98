package helptest

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// WrongUsage fails where a command of the program, of whatever depth, ends otherwise than with the code that want has for
// it when it gets a flag that it does not know, or an empty argument. run executes a command line.
func WrongUsage(t *testing.T, root *cobra.Command, run func(args ...string) (code int, message string), want func(path string) int) {
	t.Helper()
	var walk func(c *cobra.Command, path []string)
	walk = func(c *cobra.Command, path []string) {
		name := strings.Join(path, " ")
		wrong := []string{"--no-such-flag"}
		if len(path) > 0 {
			wrong = append(wrong, "")
		}
		for _, arg := range wrong {
			if code, message := run(append(path[:len(path):len(path)], arg)...); code != want(name) || message == "" {
				t.Errorf("%s %q: exit code %d, want %d; %s", name, arg, code, want(name), message)
			}
		}
		for _, s := range c.Commands() {
			if s.Name() != "help" && s.Name() != "completion" {
				walk(s, append(path[:len(path):len(path)], s.Name()))
			}
		}
	}
	walk(root, nil)
}
