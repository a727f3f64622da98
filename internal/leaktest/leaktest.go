// Package leaktest makes a test binary fail when its tests leave something
// behind: goroutines, file descriptors, memory of pools, processes. A package's TestMain
// calls Main and nothing else.
package leaktest

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
)

// grace is how long what is ending may take on a loaded machine.
const grace = time.Minute

// Option is something more to do or to look at.
type Option func(*check)

type check struct {
	after []func()
	pools []pool
	mark  string // of processes; "": they are not looked for
	last  func() // called at the end; nil: nothing is to be done
}

type pool struct {
	name string
	out  func() int64
}

// After runs f between the tests and the check, to end what they share.
func After(f func()) Option { return func(c *check) { c.after = append(c.after, f) } }

// Pool says that out is to be zero at the end; name is what it counts.
func Pool(name string, out func() int64) Option {
	return func(c *check) { c.pools = append(c.pools, pool{name, out}) }
}

// Main runs the tests, looks for what was left, and exits.
func Main(m *testing.M, opts ...Option) {
	var c check
	for _, o := range opts {
		o(&c)
	}
	files := openFiles()
	code := m.Run()
	for _, f := range c.after {
		f()
	}
	// The fuzzing engine has goroutines and files of its own.
	if f := flag.Lookup("test.fuzz"); code == 0 && (f == nil || f.Value.String() == "") {
		left := c.left(files)
		for end := time.Now().Add(grace); left != "" && time.Now().Before(end); left = c.left(files) {
			time.Sleep(10 * time.Millisecond)
		}
		if left != "" {
			fmt.Fprint(os.Stderr, "left behind by the tests:\n", left)
			code = 1
		}
	}
	if c.last != nil {
		c.last()
	}
	os.Exit(code)
}

// left says what is there that should not be.
func (c *check) left(files int) string {
	var b strings.Builder
	if n := openFiles(); n > files {
		fmt.Fprintf(&b, "%d file descriptors\n", n-files)
	}
	for _, p := range c.pools {
		if n := p.out(); n != 0 {
			fmt.Fprintf(&b, "%d %s\n", n, p.name)
		}
	}
	if c.mark != "" {
		b.WriteString(processes(c.mark))
	}
	b.WriteString(goroutines())
	return b.String()
}

// openFiles counts descriptors without those of the runtime's poller.
func openFiles() (n int) {
	fds, _ := os.ReadDir("/proc/self/fd")
	for _, fd := range fds {
		to, err := os.Readlink("/proc/self/fd/" + fd.Name())
		if err == nil && !strings.HasPrefix(to, "anon_inode:") {
			n++
		}
	}
	return n
}

// goroutines returns the stacks of goroutines that run this module's code.
func goroutines() string {
	buf := make([]byte, 4<<20)
	buf = buf[:runtime.Stack(buf, true)]
	var b strings.Builder
	for _, g := range strings.Split(string(buf), "\n\n") {
		if strings.Contains(g, "softiser/") && !strings.Contains(g, "leaktest.Main") {
			b.WriteString(g + "\n\n")
		}
	}
	return b.String()
}
