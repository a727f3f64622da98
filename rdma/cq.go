package rdma

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
)

// CQConfig describes a completion queue.
type CQConfig struct {
	// Depth is the number of completions it holds; 0 means 256. It must hold what
	// all its queue pairs can have outstanding: overflow ends them (see
	// ErrOverflow).
	Depth int
	// Handler, when set, is called after completions have been added, once per
	// batch, on the goroutine that produced them: the receive goroutine of a queue
	// pair, its transmit goroutine, or one inside QP.Push or PostSend. It is never
	// called from inside Enqueue or PostRecv, never concurrently with itself for
	// one CQ, and no lock of this package is held. It should poll until the queue
	// is empty; it may Enqueue, PostRecv and Push.
	Handler func(*CQ)
}

// CQ is a completion queue. All methods may be called concurrently.
type CQ struct {
	dev     *Device
	handler func(*CQ)
	use     atomic.Int64 // queue pairs

	mu       sync.Mutex // guards what follows; a leaf
	ring     []WC
	head, n  int
	overflow bool
	closed   bool
	added    bool // completions came since the handler last started
	running  bool // the handler runs
	armed    bool
	solOnly  bool
	wake     chan struct{} // capacity 1
}

// CreateCQ creates a completion queue.
func (d *Device) CreateCQ(cfg CQConfig) (*CQ, error) {
	def(&cfg.Depth, 256)
	if cfg.Depth < 1 || cfg.Depth > d.cfg.MaxCQE {
		return nil, invalid("completion queue depth %d, the device allows 1 to %d", cfg.Depth, d.cfg.MaxCQE)
	}
	if d.isClosed() {
		return nil, fmt.Errorf("%w: device", ErrClosed)
	}
	if err := take(&d.nCQ, d.cfg.MaxCQ, "completion queues"); err != nil {
		return nil, err
	}
	return &CQ{dev: d, handler: cfg.Handler, ring: make([]WC, cfg.Depth), wake: make(chan struct{}, 1)}, nil
}

// Poll moves up to len(wc) completions into wc and returns their number.
func (cq *CQ) Poll(wc []WC) int {
	cq.mu.Lock()
	k := min(len(wc), cq.n)
	for i := 0; i < k; {
		run := min(k-i, len(cq.ring)-cq.head)
		copy(wc[i:i+run], cq.ring[cq.head:cq.head+run])
		i += run
		if cq.head += run; cq.head == len(cq.ring) {
			cq.head = 0
		}
	}
	if cq.n -= k; cq.n == 0 {
		cq.head = 0 // a queue with few completions at a time uses, and keeps warm, few of its slots
	}
	cq.mu.Unlock()
	return k
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
		cq.mu.Unlock()
		select {
		case <-cq.wake:
			cq.mu.Lock()
			fired := !cq.armed
			cq.mu.Unlock()
			if fired {
				return nil
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (cq *CQ) signalLocked() {
	select {
	case cq.wake <- struct{}{}:
	default:
	}
}

// add appends a completion. It returns false on overflow, which the caller turns
// into the end of its queue pair.
func (cq *CQ) add(wc *WC) bool {
	cq.mu.Lock()
	ok := cq.addLocked(wc)
	cq.mu.Unlock()
	return ok
}

func (cq *CQ) addLocked(wc *WC) bool {
	if cq.n == len(cq.ring) {
		cq.overflow = true
		cq.signalLocked()
		return false
	}
	i := cq.head + cq.n
	if i >= len(cq.ring) {
		i -= len(cq.ring)
	}
	cq.ring[i] = *wc
	cq.n++
	cq.added = true
	if cq.armed && (!cq.solOnly || wc.Flags&WCSolicited != 0 || wc.Status != StatusSuccess) {
		cq.armed = false
		cq.signalLocked()
	}
	return true
}

// addAll appends completions in order. It returns false on overflow.
func (cq *CQ) addAll(wcs []WC) bool {
	cq.mu.Lock()
	defer cq.mu.Unlock()
	for i := range wcs {
		if !cq.addLocked(&wcs[i]) {
			return false
		}
	}
	return true
}

// dispatch runs the handler if completions have come since it last started. If
// it is running on another goroutine, or further up on this one, that run is
// repeated instead.
func (cq *CQ) dispatch() {
	if cq.handler == nil {
		return
	}
	cq.mu.Lock()
	if !cq.added || cq.running {
		cq.mu.Unlock()
		return
	}
	cq.running = true
	for cq.added {
		cq.added = false
		cq.mu.Unlock()
		cq.handler(cq)
		cq.mu.Lock()
	}
	cq.running = false
	cq.mu.Unlock()
}

// crowded reports whether the handler should run before more is added.
func (cq *CQ) crowded() bool {
	cq.mu.Lock()
	defer cq.mu.Unlock()
	return cq.handler != nil && 2*cq.n >= len(cq.ring)
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
	if n < 1 || n > cq.dev.cfg.MaxCQE {
		return invalid("completion queue depth %d, the device allows 1 to %d", n, cq.dev.cfg.MaxCQE)
	}
	cq.mu.Lock()
	defer cq.mu.Unlock()
	if cq.n > n {
		return fmt.Errorf("%w: %d completions wait, new depth %d", ErrBusy, cq.n, n)
	}
	ring := make([]WC, n)
	for i := range cq.n {
		ring[i] = cq.ring[(cq.head+i)%len(cq.ring)]
	}
	cq.ring, cq.head = ring, 0
	return nil
}

// Close ends the queue. It fails with ErrBusy while a queue pair uses it.
func (cq *CQ) Close() error {
	if n := cq.use.Load(); n > 0 {
		return fmt.Errorf("%w: the completion queue serves %d queue pairs", ErrBusy, n)
	}
	cq.mu.Lock()
	was := cq.closed
	cq.closed = true
	cq.signalLocked()
	cq.mu.Unlock()
	if !was {
		cq.dev.nCQ.Add(-1)
	}
	return nil
}
