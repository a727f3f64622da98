package verbs

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
)

// CQ is a completion queue: the ring, who waits for it, and the handler.
type CQ struct {
	handler func()
	added   atomic.Bool // completions came since the handler last started; set under mu
	running atomic.Bool // the handler runs

	mu       sync.Mutex // guards what follows; a leaf
	ring     []WC       // grows with what waits, up to depth
	depth    int
	head, n  int
	overflow bool
	closed   bool
	armed    bool
	solOnly  bool
	waiting  int           // calls of Wait that sleep
	wake     chan struct{} // capacity 1
}

// Init makes cq a queue of depth completions. The handler may be nil; it is called
// without locks, never concurrently with itself, by Dispatch.
func (cq *CQ) Init(depth int, handler func()) {
	cq.handler, cq.depth, cq.wake = handler, depth, make(chan struct{}, 1)
	cq.ringLocked(min(depth, fewWCs))
}

// fewWCs is how many completions a queue has room for before it has had to take more.
const fewWCs = 8

// ringLocked moves what waits into a ring of n.
func (cq *CQ) ringLocked(n int) {
	ring := make([]WC, n)
	for i := range cq.n {
		ring[i] = cq.ring[(cq.head+i)%len(cq.ring)]
	}
	cq.ring, cq.head = ring, 0
}

// Lock and Unlock enclose calls of NextLocked.
func (cq *CQ) Lock() { cq.mu.Lock() }

// Unlock is described at Lock.
func (cq *CQ) Unlock() { cq.mu.Unlock() }

// NextLocked takes the oldest completion out; nil when there is none. It is valid
// until Unlock.
func (cq *CQ) NextLocked() *WC {
	if cq.n == 0 {
		return nil
	}
	wc := &cq.ring[cq.head]
	if cq.head++; cq.head == len(cq.ring) {
		cq.head = 0
	}
	if cq.n--; cq.n == 0 {
		cq.head = 0 // a queue with few completions at a time uses, and keeps warm, few of its slots
	}
	return wc
}

// Len is the number of completions waiting.
func (cq *CQ) Len() int {
	cq.mu.Lock()
	defer cq.mu.Unlock()
	return cq.n
}

// ReqNotify arms the queue for one wake-up of Wait: by the next completion, or
// with solicitedOnly by the next one that is an error or answers a message with a
// solicited event. Arm, then Poll once more, then Wait.
func (cq *CQ) ReqNotify(solicitedOnly bool) {
	cq.mu.Lock()
	cq.armed, cq.solOnly = true, solicitedOnly
	cq.mu.Unlock()
}

// Wait returns when the queue has something to poll, or after ReqNotify(true)
// when what was asked for has come. Without ReqNotify it means ReqNotify(false).
func (cq *CQ) Wait(ctx context.Context) error {
	for {
		cq.mu.Lock()
		switch {
		case cq.closed:
			cq.signalLocked() // to the next one who waits
			cq.mu.Unlock()
			return fmt.Errorf("%w: completion queue", ErrClosed)
		case cq.overflow:
			cq.signalLocked()
			cq.mu.Unlock()
			return ErrOverflow
		case !cq.armed:
			cq.armed, cq.solOnly = true, false
		}
		if !cq.solOnly && cq.n > 0 {
			cq.armed = false
			cq.mu.Unlock()
			return nil
		}
		cq.waiting++
		cq.mu.Unlock()
		var err error
		select {
		case <-cq.wake:
		case <-ctx.Done():
			err = ctx.Err()
		}
		if fired := cq.awake(err == nil); err != nil || fired {
			return err
		}
	}
}

// awake is called after a sleep in Wait, woken by a completion or not, and reports whether that is what
// the caller waits for. The other waiters go on: the queue is armed for the next one of them, or wakes
// that one too.
func (cq *CQ) awake(woken bool) (fired bool) {
	cq.mu.Lock()
	defer cq.mu.Unlock()
	cq.waiting--
	fired = woken && !cq.armed
	switch {
	case !fired || cq.waiting == 0:
	case cq.closed || cq.overflow || !cq.solOnly && cq.n > 1:
		cq.signalLocked()
	default:
		cq.armed = true
	}
	return fired
}

func (cq *CQ) signalLocked() {
	select {
	case cq.wake <- struct{}{}:
	default:
	}
}

// Add appends a completion. It returns false on overflow, which the caller turns
// into the end of its queue pair.
func (cq *CQ) Add(wc *WC) bool {
	cq.mu.Lock()
	ok := cq.addLocked(wc)
	cq.mu.Unlock()
	return ok
}

func (cq *CQ) addLocked(wc *WC) bool {
	if cq.n == len(cq.ring) {
		if cq.n >= cq.depth {
			cq.overflow = true
			cq.signalLocked()
			return false
		}
		cq.ringLocked(min(2*cq.n, cq.depth))
	}
	i := cq.head + cq.n
	if i >= len(cq.ring) {
		i -= len(cq.ring)
	}
	cq.ring[i] = *wc
	cq.n++
	if !cq.added.Load() {
		cq.added.Store(true) // it costs more than to look
	}
	if cq.armed && (!cq.solOnly || wc.Flags&WCSolicited != 0 || wc.Status != StatusSuccess) {
		cq.armed = false
		cq.signalLocked()
	}
	return true
}

// AddAll appends completions in order. It returns false on overflow.
func (cq *CQ) AddAll(wcs []WC) bool {
	cq.mu.Lock()
	defer cq.mu.Unlock()
	for i := range wcs {
		if !cq.addLocked(&wcs[i]) {
			return false
		}
	}
	return true
}

// Dispatch runs the handler if completions have come since it last started. If
// it is running on another goroutine, or further up on this one, that run is
// repeated instead: whoever ends a run looks once more after saying so.
func (cq *CQ) Dispatch() {
	if cq.handler == nil {
		return
	}
	for cq.added.Load() && cq.running.CompareAndSwap(false, true) {
		for cq.added.Load() {
			cq.added.Store(false) // before the handler polls: what comes later runs it again
			cq.handler()
		}
		cq.running.Store(false)
	}
}

// Due reports whether Dispatch would run the handler.
func (cq *CQ) Due() bool { return cq.handler != nil && cq.added.Load() }

// Crowded reports whether the handler should run before more is added.
func (cq *CQ) Crowded() bool {
	cq.mu.Lock()
	defer cq.mu.Unlock()
	return cq.handler != nil && 2*cq.n >= cq.depth
}

// Takes reports whether there is room for n completions and one more. It is asked before a receive
// buffer is taken, where packets come on while the handler is at work: a peer can be made to wait.
// A queue without a handler is its user's to empty in time.
func (cq *CQ) Takes(n int) bool {
	cq.mu.Lock()
	defer cq.mu.Unlock()
	return cq.handler == nil || cq.n+n < cq.depth
}

// Overflowed reports whether a completion has been lost.
func (cq *CQ) Overflowed() bool {
	cq.mu.Lock()
	defer cq.mu.Unlock()
	return cq.overflow
}

// Resize changes the depth. It fails with ErrBusy when more completions are
// waiting than fit.
func (cq *CQ) Resize(n int) error {
	cq.mu.Lock()
	defer cq.mu.Unlock()
	if cq.n > n {
		return fmt.Errorf("%w: %d completions wait, new depth %d", ErrBusy, cq.n, n)
	}
	cq.depth = n
	cq.ringLocked(min(n, max(cq.n, fewWCs)))
	return nil
}

// Handled reports whether the queue has a handler.
func (cq *CQ) Handled() bool { return cq.handler != nil }

// Close ends the queue and wakes up who waits.
func (cq *CQ) Close() {
	cq.mu.Lock()
	defer cq.mu.Unlock()
	cq.closed = true
	cq.signalLocked()
}
