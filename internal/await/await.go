// Package await waits, in tests, for what another goroutine or another process
// is about to bring about, where there is nothing to block on: a counter that
// reaches its value, a server that begins to listen. The deadline is one for a
// loaded machine: it ends a test that has failed, it never decides whether one
// passes. What depends on time alone belongs in testing/synctest instead.
package await

import (
	"bytes"
	"net"
	"reflect"
	"runtime"
	"testing"
	"time"
)

// Deadline is how long the functions of this package wait.
const Deadline = 2 * time.Minute

// True returns as soon as ok does; what says in the failure what was awaited:
// "the session ends".
func True(t testing.TB, what string, ok func() bool) {
	t.Helper()
	if !Until(ok) {
		t.Fatalf("it never came about that %s", what)
	}
}

// Until is True for those who have more to say or to do when it never comes about:
// it returns whether ok did return true.
func Until(ok func() bool) bool {
	for range 50 { // most of what is awaited is a few microseconds away
		if ok() {
			return true
		}
		runtime.Gosched()
	}
	pause := 20 * time.Microsecond
	for end := time.Now().Add(Deadline); !ok(); pause = min(2*pause, 5*time.Millisecond) {
		if time.Now().After(end) {
			return false
		}
		time.Sleep(pause)
	}
	return true
}

// Within is how many calls of fs, functions or method expressions such as (*T).Wait, goroutines are in. Who
// renames one has to do so in the test, too.
func Within(fs ...any) (calls int) {
	all := make([]byte, 64<<10)
	n := len(all)
	for n == len(all) { // else it is cut short
		all = make([]byte, 2*len(all))
		n = runtime.Stack(all, true)
	}
	for _, f := range fs {
		calls += bytes.Count(all[:n], []byte("\n"+runtime.FuncForPC(reflect.ValueOf(f).Pointer()).Name()+"("))
	}
	return calls
}

// Listening returns as soon as a TCP connection to addr can be made; the one it
// has made is closed again.
func Listening(t testing.TB, addr string) {
	t.Helper()
	True(t, "something listens on "+addr, func() bool {
		c, err := net.Dial("tcp", addr)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
}
