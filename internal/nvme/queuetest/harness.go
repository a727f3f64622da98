// Package queuetest is the conformance suite of the two seams between a queue of NVMe over
// Fabrics and what carries it. Every pair of a nvme.HostTransport and a
// nvme.QueueTransport passes it:
//
//	func TestConformance(t *testing.T) { queuetest.Run(t, pair) }
//
// where pair connects a host and a controller. Above the controller a Disk reads and
// writes memory, above the host a Queue submits commands; tests that speak one side by
// themselves, byte for byte, use the other.
package queuetest

import (
	"math/rand/v2"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"softiser/internal/nvme"
)

// Host is the host's side of a connection. Ended is closed when its last up-call has
// returned.
type Host interface {
	nvme.HostTransport
	Ended() <-chan struct{}
}

// Controller is the controller's side of a connection. Ended is closed when its last
// up-call has returned.
type Controller interface {
	nvme.QueueTransport
	Ended() <-chan struct{}
}

// Entries is how many commands the queue of a Pair has room for.
const Entries = 32

// Pair makes the two sides of a connection that carries I/O queue 1, with Entries. It calls
// begin, which starts the controller, as soon as that is there: hosts may wait for what it
// says. The host is not started, and may put inCapsule bytes into a capsule.
type Pair func(t testing.TB, inCapsule int, begin func(Controller)) Host

// deadline for anything that happens; it ends a test that has failed.
const deadline = 2 * time.Minute

// Pattern is n random bytes, the same for a seed.
func Pattern(n int, seed byte) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(b)
	return b
}

// upper is what both sides check about the seam itself.
type upper struct {
	t     testing.TB
	name  string
	over  atomic.Bool // Ended has come
	quick atomic.Bool // nobody looks at the stack
}

// upcall checks that this up-call may be made: it is not behind the last one, and not from
// inside a down-call but those that are allowed.
func (u *upper) upcall(what string, allowed ...string) {
	if u.over.Load() && what != "Sent" {
		u.t.Errorf("%s: %s behind Ended", u.name, what)
	}
	if u.quick.Load() {
		return
	}
	var pc [64]uintptr
	frames := runtime.CallersFrames(pc[:runtime.Callers(3, pc[:])])
	for {
		f, more := frames.Next()
		if i := strings.LastIndex(f.Function, ")."); i >= 0 && downCalls[f.Function[i+2:]] && !strings.Contains(f.Function, "queuetest") && under(f.Function) {
			name := f.Function[i+2:]
			ok := false
			for _, a := range allowed {
				ok = ok || a == name
			}
			if ok {
				return // what is below it on the stack is another up-call's affair
			}
			u.t.Errorf("%s: %s from inside %s", u.name, what, f.Function)
		}
		if !more {
			return
		}
	}
}

// under reports whether a function is of the transports under test: the layers below have
// methods of the same names.
func under(function string) bool {
	return strings.Contains(function, "(*Host)") || strings.Contains(function, "(*Controller)") || strings.Contains(function, "(*conn)")
}

var downCalls = map[string]bool{
	"Submit": true, "Push": true, "Terminate": true, "SetEntries": true,
	"PutData": true, "GetData": true, "Respond": true, "Cancel": true,
}

// recv takes what a channel brings.
func recv[T any](t testing.TB, what string, ch <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-ch:
	case <-time.After(deadline):
		t.Fatalf("%s did not come", what)
	}
	return v
}
