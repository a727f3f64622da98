package lvmtest

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"softiser/blockdev"
)

// Main runs a package's tests and fails when they leave goroutines, file
// descriptors or staging memory behind: os.Exit(lvmtest.Main(m)).
func Main(m *testing.M) int {
	blockdev.DefaultPool()
	if r, w, err := os.Pipe(); err == nil { // opens the runtime's poller, which stays
		r.Close()
		w.Close()
	}
	goroutines, files := runtime.NumGoroutine(), openFiles()
	code := m.Run()
	if code != 0 || flag.Lookup("test.fuzz").Value.String() != "" {
		return code
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		var what []string
		if n := runtime.NumGoroutine(); n > goroutines {
			what = append(what, fmt.Sprintf("%d goroutines", n-goroutines))
		}
		if n := openFiles(); n > files {
			what = append(what, fmt.Sprintf("%d file descriptors", n-files))
		}
		if n := blockdev.DefaultPool().Out(); n != 0 {
			what = append(what, fmt.Sprintf("%d bytes of staging memory", n))
		}
		if len(what) == 0 {
			return 0
		}
		if time.Now().After(deadline) {
			buf := make([]byte, 1<<20)
			fmt.Printf("leaked: %s\n%s\n", strings.Join(what, ", "), buf[:runtime.Stack(buf, true)])
			return 1
		}
	}
}

func openFiles() int {
	es, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0
	}
	return len(es)
}
