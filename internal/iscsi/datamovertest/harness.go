// Package datamovertest is the conformance suite of the datamover seam (RFC
// 5047). Every implementation of iscsi.Datamover passes it:
//
//	func TestConformance(t *testing.T) { datamovertest.Run(t, pair) }
//
// where pair connects an initiator and a target. Above them the suite plays a
// small iSCSI session with a memory for a disk: real logins, commands, data and
// responses, so that what it proves holds for the target and the initiator.
package datamovertest

import (
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"softiser/internal/iscsi"
)

// Pair makes two connected datamovers that have not been started.
type Pair func(t testing.TB) (initiator, target iscsi.Datamover)

// Options of a session of the suite.
type Options struct {
	Initiator iscsi.Settings
	Target    iscsi.Settings
}

// DefaultOptions lets everything be negotiated.
func DefaultOptions() Options {
	return Options{Initiator: iscsi.DefaultSettings(), Target: iscsi.DefaultSettings()}
}

// deadline for anything that the peer has to do; generous, for loaded machines.
const deadline = 2 * time.Minute

// diskSize is the size of the target's memory.
const diskSize = 4 << 20

// Commands of the suite, in the CDB: byte 0 is the operation, bytes 2 to 5 the
// offset, byte 1 how the memory is cut, byte 6 into how many transfers.
const (
	opRead  = 0x28
	opWrite = 0x2a
	opHold  = 0xc0 // the test answers
)

// Session is a logged-in pair.
type Session struct {
	tb        testing.TB
	Initiator *Initiator
	Target    *Target
}

// Open logs in.
func Open(tb testing.TB, pair Pair, o Options) *Session {
	tb.Helper()
	idm, tdm := pair(tb)
	s := &Session{tb: tb}
	s.Target = newTarget(tb, tdm, o.Target)
	s.Initiator = newInitiator(tb, idm, o.Initiator)
	tdm.Start(s.Target)
	idm.Start(s.Initiator)
	s.Initiator.login()
	return s
}

// Close ends both ends and waits for them.
func (s *Session) Close() {
	s.tb.Helper()
	s.Initiator.dm.Terminate(nil)
	s.Target.dm.Terminate(nil)
	s.Initiator.end.wait(s.tb, "initiator")
	s.Target.end.wait(s.tb, "target")
	for _, u := range []*upper{&s.Initiator.upper, &s.Target.upper} {
		if n := u.outstanding.Load(); n != 0 {
			s.tb.Errorf("%s: %d transfers were never completed", u.name, n)
		}
	}
}

// upper is what both ends check about the seam itself.
type upper struct {
	tb          testing.TB
	name        string
	dm          iscsi.Datamover
	end         *ending
	outstanding atomic.Int64 // transfers
	checkStack  atomic.Bool  // up-calls look for down-calls below them
}

// Datamover returns what is below.
func (u *upper) Datamover() iscsi.Datamover { return u.dm }

// ending is the last up-call.
type ending struct {
	once sync.Once
	ch   chan struct{}
	err  error
	n    atomic.Int32
}

func (e *ending) set(err error) {
	e.n.Add(1)
	e.once.Do(func() { e.err = err; close(e.ch) })
}

func (e *ending) wait(tb testing.TB, who string) error {
	tb.Helper()
	select {
	case <-e.ch:
		return e.err
	case <-time.After(deadline):
		tb.Fatalf("%s: ConnectionTerminateNotify did not come", who)
		return nil
	}
}

// upcall checks that no down-call (but Push) is on the stack.
func (u *upper) upcall() {
	if u.end.n.Load() > 0 {
		u.tb.Errorf("%s: up-call after ConnectionTerminateNotify", u.name)
	}
	if !u.checkStack.Load() {
		return
	}
	var pc [64]uintptr
	frames := runtime.CallersFrames(pc[:runtime.Callers(2, pc[:])])
	for {
		f, more := frames.Next()
		for _, down := range []string{").SendControl", ").PutData", ").GetData", ").AbortTransfer", ").ReleaseTask", ").Enable", ").Terminate"} {
			if strings.HasSuffix(f.Function, down) && !strings.Contains(f.Function, "datamovertest") {
				u.tb.Errorf("%s: up-call from inside %s", u.name, f.Function)
			}
		}
		if !more {
			return
		}
	}
}

func (u *upper) ConnectionTerminateNotify(err error) {
	u.upcall()
	u.end.set(err)
}
