package nbd

import (
	"runtime"
	"syscall"
	"time"
)

// Where the target, or the client, has the same processor, it has work for as long as many
// requests are under way, and what this process does meanwhile it does for few requests at a
// time. So others go first before more is received: what they need is brief, and what has come
// by then is received in one call. Nothing is lost where nobody else is there. What it gives
// stands in benchmarks/LIMITS.md, "attach beside nbdkit".
//
// A program that only computes would use the processor up to the end of its slice, each time.
// When that has happened it is not offered for a while.
const (
	yieldLong = time.Millisecond // others have done more than to handle what was under way
	yieldRest = 1000             // receive calls
)

// yielding is whether the processor is offered. It belongs to the receive goroutine.
type yielding struct {
	rest int // calls before which it is not
}

// offer lets others run if it pays: so many requests are under way.
func (y *yielding) offer(under int) {
	if y.rest > 0 {
		y.rest--
		return
	}
	if under < gatherFrom {
		return
	}
	y.give()
}

// midst is for the middle of a long payload, however few requests are under way: asked for at once
// the rest of it comes in the small pieces in which the client copies it. The session's goroutines go
// first, too. Only for a process that has one processor: left free it is a loss.
func (y *yielding) midst() {
	runtime.Gosched()
	if y.rest > 0 {
		y.rest--
		return
	}
	y.give()
}

// give lets other processes run.
func (y *yielding) give() {
	began := time.Now()
	syscall.RawSyscall(syscall.SYS_SCHED_YIELD, 0, 0, 0)
	y.took(time.Since(began))
}

// took enters how long others have had it.
func (y *yielding) took(d time.Duration) {
	if d > yieldLong {
		y.rest = yieldRest
	}
}
