package await

import (
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// failing is a test that notes its failure instead of failing.
type failing struct {
	testing.TB
	msg string
}

func (f *failing) Helper() {}
func (f *failing) Fatalf(format string, args ...any) {
	f.msg = strings.ReplaceAll(format, "%s", args[0].(string))
	runtime.Goexit()
}

func TestTrue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		True(t, "a second has passed", func() bool { return time.Since(begin) >= time.Second })
		if d := time.Since(begin); d > 1100*time.Millisecond {
			t.Errorf("it took %v to see it", d)
		}
		f := &failing{TB: t}
		begin = time.Now()
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			True(f, "pigs fly", func() bool { return false })
		}()
		<-ended
		if d := time.Since(begin); d < Deadline || !strings.Contains(f.msg, "pigs fly") {
			t.Errorf("after %v: %q", d, f.msg)
		}
	})
}

func TestListening(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	Listening(t, ln.Addr().String())
}

type gate chan struct{}

func (g gate) pass() { <-g }

// Calls of a method are counted, and none after its end.
func TestWithin(t *testing.T) {
	g := make(gate)
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(g.pass)
	}
	True(t, "they wait", func() bool { return Within(gate.pass) == 3 })
	close(g)
	wg.Wait()
	if n := Within(gate.pass); n != 0 {
		t.Errorf("%d calls after their end", n)
	}
}
