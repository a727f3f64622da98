// Package leaktest makes a test binary fail when its tests leave goroutines or
// file descriptors behind. A package's TestMain calls Main and nothing else.
package leaktest

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
)

// grace is how long goroutines that are ending may take on a loaded machine.
const grace = 5 * time.Second

// Main runs the tests, then cleanup, then looks for what was left, and exits.
func Main(m *testing.M, cleanup ...func()) {
	if r, w, err := os.Pipe(); err == nil { // the poller's own descriptors stay
		r.Close()
		w.Close()
	}
	before := openFiles()
	code := m.Run()
	for _, f := range cleanup {
		f()
	}
	if code == 0 {
		for end := time.Now().Add(grace); time.Now().Before(end) && (goroutines() != "" || openFiles() > before); {
			time.Sleep(10 * time.Millisecond)
		}
		if s := goroutines(); s != "" {
			fmt.Fprintln(os.Stderr, "goroutines left behind:\n"+s)
			code = 1
		}
		if n := openFiles(); n > before {
			fmt.Fprintf(os.Stderr, "%d descriptors before, %d after\n", before, n)
			code = 1
		}
	}
	os.Exit(code)
}

func openFiles() int {
	d, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0
	}
	return len(d)
}

// goroutines returns the stacks of goroutines that run this module's code.
func goroutines() string {
	buf := make([]byte, 1<<20)
	buf = buf[:runtime.Stack(buf, true)]
	var left []string
	for _, g := range strings.Split(string(buf), "\n\n") {
		if strings.Contains(g, "softiser/") && !strings.Contains(g, "TestMain") {
			left = append(left, g)
		}
	}
	return strings.Join(left, "\n\n")
}
