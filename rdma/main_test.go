package rdma_test

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"testing"
	"time"
)

// TestMain fails when goroutines or file descriptors are left over.
func TestMain(m *testing.M) {
	goroutines, fds := runtime.NumGoroutine(), openFDs()
	code := m.Run()
	// The fuzzing engine has goroutines of its own.
	fuzzing := flag.Lookup("test.fuzz").Value.String() != ""
	if code == 0 && !fuzzing {
		deadline := time.Now().Add(5 * time.Second)
		for runtime.NumGoroutine() > goroutines && time.Now().Before(deadline) {
			time.Sleep(5 * time.Millisecond)
		}
		if n := runtime.NumGoroutine(); n > goroutines {
			buf := make([]byte, 1<<20)
			fmt.Printf("%d goroutines, %d at the start:\n%s\n", n, goroutines, buf[:runtime.Stack(buf, true)])
			code = 1
		}
		// The poller's own descriptors are opened by the first connection.
		if n := openFDs(); n > fds+2 {
			fmt.Printf("%d file descriptors open, %d at the start\n", n, fds)
			code = 1
		}
	}
	os.Exit(code)
}

func openFDs() int {
	d, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0
	}
	return len(d)
}
