package bench

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"softiser/initiator/internal/e2e"
)

// TestMain fails when a test leaves a goroutine or a descriptor behind.
func TestMain(m *testing.M) {
	if r, w, err := os.Pipe(); err == nil { // the poller's own descriptors stay
		r.Close()
		w.Close()
	}
	fds := openFiles()
	code := m.Run()
	e2e.Clean()
	if code == 0 {
		for wait := 0; wait < 200 && (leaked() != "" || openFiles() > fds); wait++ {
			time.Sleep(10 * time.Millisecond)
		}
		if s := leaked(); s != "" {
			fmt.Fprintln(os.Stderr, "goroutines left behind:\n"+s)
			code = 1
		}
		if n := openFiles(); n > fds {
			fmt.Fprintf(os.Stderr, "%d descriptors before, %d after\n", fds, n)
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

// leaked returns the stacks of goroutines that run this package's code.
func leaked() string {
	buf := make([]byte, 1<<20)
	buf = buf[:runtime.Stack(buf, true)]
	var bad []string
	for _, g := range strings.Split(string(buf), "\n\n") {
		if strings.Contains(g, "softiser/") && !strings.Contains(g, "TestMain") {
			bad = append(bad, g)
		}
	}
	return strings.Join(bad, "\n\n")
}
