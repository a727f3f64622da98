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
// When that has happened it is not offered for a while, and what is gathered leaves before the next
// offer: where Go has one processor, gathering's timer does not run while another program has it.
const (
	yieldLong = time.Millisecond // others have done more than to handle what was under way
	yieldRest = 1000             // receive calls
)

// yielding is whether the processor is offered. It belongs to the receive goroutine.
type yielding struct {
	rest  int  // calls before which it is not
	brief bool // the last one who had it has given it back soon
}

// due is whether to offer it before this call.
func (y *yielding) due() bool {
	if y.rest > 0 {
		y.rest--
		return false
	}
	return true
}

// took enters how long others have had it.
func (y *yielding) took(d time.Duration) {
	if y.brief = d <= yieldLong; !y.brief {
		y.rest = yieldRest
	}
}

// offer lets others run before more is received, if it pays.
func (c *conn) offer() {
	if under := c.underWay(); c.yield.due() && under >= gatherFrom {
		c.stepAside()
	}
}

// midst is for the middle of a long payload, however few requests are under way: asked for at once
// the rest of it comes in the small pieces in which the client copies it. The session's goroutines go
// first, too. Only for a process in which Go has one processor: with two it is a loss.
func (c *conn) midst() {
	runtime.Gosched()
	if c.yield.due() {
		c.stepAside()
	}
}

// stepAside lets other processes run. What is gathered does not wait for one that may keep the
// processor.
func (c *conn) stepAside() {
	if !c.yield.brief {
		c.submit()
	}
	began := time.Now()
	syscall.RawSyscall(syscall.SYS_SCHED_YIELD, 0, 0, 0)
	c.back(time.Since(began))
}

// back is for the moment after others have had the processor for d.
func (c *conn) back(d time.Duration) {
	if c.yield.took(d); !c.yield.brief {
		c.submit() // it has waited long enough
	}
}
