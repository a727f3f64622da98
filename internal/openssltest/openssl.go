// Package openssltest runs openssl, the other implementation of TLS, for tests.
package openssltest

import (
	"bufio"
	"context"
	"io"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// Start runs openssl with args until the test ends, a minute at most. It skips the test where
// there is none. s_client and s_server look at the first letter of what they read from in, in one
// piece: a line may follow a command (K: new keys) when that has shown an effect, not before.
func Start(t *testing.T, args ...string) (in io.WriteCloser, out *bufio.Reader) {
	t.Helper()
	path, err := exec.LookPath("openssl")
	if err != nil {
		t.Skip("openssl is not installed")
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	c := exec.CommandContext(ctx, path, args...)
	if in, err = c.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	r, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	c.Stderr = c.Stdout
	c.WaitDelay = 5 * time.Second
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		c.Process.Kill()
		c.Wait()
	})
	return in, bufio.NewReader(r)
}

// Until reads lines until one has want, and returns that.
func Until(t *testing.T, out *bufio.Reader, want string) string {
	t.Helper()
	var all strings.Builder
	for {
		line, err := out.ReadString('\n')
		all.WriteString(line)
		if strings.Contains(line, want) {
			return line
		}
		if err != nil {
			t.Fatalf("%q does not come from openssl: %v\n%s", want, err, all.String())
		}
	}
}
