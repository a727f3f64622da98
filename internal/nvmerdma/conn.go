package nvmerdma

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"

	"softiser/internal/nvme"
	"softiser/internal/rdmamsg"
	"softiser/rdma"
)

// conn is what both sides of a connection have in common.
type conn struct {
	role role
	link *rdmamsg.Link
	qp   *rdma.QP // of link
	info rdma.ConnInfo

	started atomic.Bool
	startCh chan struct{} // closed by Start, or by the end of the connection before it
	ended   chan struct{} // closed when the last up-call has returned

	mu      sync.Mutex // guards what follows, and what the role says
	st      state
	cause   error // why the connection ended; the first one counts
	pump    rdmamsg.Pump
	park    *parking        // it is to be parked, or is; nil: it is not
	flushed bool            // the queue pair has ended, and nothing is posted any more
	untold  bool            // the connection has ended before Start, which is to tell of it
	windows rdmamsg.Windows // a controller opens none to its host

	stats struct{ capsulesIn, capsulesOut, payloadIn, payloadOut, copied atomic.Uint64 }
}

// role is the side of a connection: Controller or Host.
type role interface {
	// received handles one message.
	received(wc *rdma.WC)
	// batchEnd follows the messages of one batch, before Push.
	batchEnd()
	// push takes in what the send queue has completed if cq is not nil, as much as fits
	// wcs, and transmits what waits; more says that there may be other completions.
	push(cq *rdma.CQ, wcs []rdma.WC) (more bool)
	// settledLocked reports whether no up-call is due, and none is being made that may post.
	settledLocked() bool
	// resumed is called by the receive goroutine when a parking has ended.
	resumed()
	// end makes the last up-calls; err is why the connection has ended.
	end(err error)
}

// init makes the queue pair; it is not connected yet.
func (c *conn) init(d *Device, r role, o rdmamsg.Owner) error {
	c.role, c.startCh, c.ended = r, make(chan struct{}), make(chan struct{})
	var err error
	c.link, err = d.NewLink(rdmamsg.LinkConfig{Sent: c.sendHandler, Received: c.recvHandler, Disconnected: func() { go c.finish() }})
	if err != nil {
		return fmt.Errorf("nvmerdma: %w", err)
	}
	c.qp, c.windows = c.link.QP, c.link.Windows()
	c.pump.Init(c.link, o)
	return nil
}

// discard undoes init.
func (c *conn) discard() {
	_ = c.qp.Close() // without the lock: it waits for the receive goroutine
	c.mu.Lock()
	defer c.mu.Unlock()
	c.link.Close(&c.windows)
}

// connected takes over what the two sides have agreed on.
func (c *conn) connected() {
	info := c.qp.Info()
	c.mu.Lock()
	c.info, c.pump.ORD = info, info.ORD
	c.mu.Unlock()
}

// begin lets the receive goroutine go on.
func (c *conn) begin() {
	if !c.started.Swap(true) {
		close(c.startCh)
	}
}

// state of a connection:
//
//	ready ──Terminate(nil)──▶ closing ──sent──▶ closed ──▶ dead
//	  └──────────────────────────┴─ failure, the peer's end ┘
//
// In closed nothing more is sent, but the peer has not closed its side yet.
type state uint8

const (
	stateReady state = iota
	stateClosing
	stateClosed
	stateDead
)

var stateNames = [...]string{"ready", "closing", "closed", "dead"}

// String names the state.
func (s state) String() string { return stateNames[s] }

// toLocked is the only writer of st; it never goes back.
func (c *conn) toLocked(s state) bool {
	if s <= c.st {
		return false
	}
	c.st = s
	return true
}

// Ended is closed when the last up-call has returned.
func (c *conn) Ended() <-chan struct{} { return c.ended }

// Describe says what the connection has agreed on, for logs and status.
func (c *conn) Describe() string {
	i := &c.info
	return fmt.Sprintf("NVMe/RDMA, %s, IRD %d, ORD %d", rdmamsg.Describe(i), i.IRD, i.ORD)
}

// Backlog tells whether something waits for the peer to read, and how many bytes the
// socket has taken so far. RDMA Reads are waited for, not sent.
func (c *conn) Backlog() (waiting bool, sent uint64) {
	sent = c.qp.Stats().WireOut
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.pump.Sending(), sent
}

// Stats are counters of a connection.
type Stats struct {
	CapsulesIn, CapsulesOut uint64
	PayloadIn, PayloadOut   uint64 // bytes of commands' data
	Copied                  uint64 // bytes of payload that were copied on their way
	ReceiveCalls            uint64
	SendCalls               uint64
}

// Stats returns the counters. In-capsule data is counted as copied: it is not where it
// belongs.
func (c *conn) Stats() Stats {
	s, q := &c.stats, c.qp.Stats()
	return Stats{
		CapsulesIn: s.capsulesIn.Load(), CapsulesOut: s.capsulesOut.Load(),
		PayloadIn: s.payloadIn.Load() + c.pump.Fetched.Load(), PayloadOut: s.payloadOut.Load(),
		Copied:       s.copied.Load() + q.PlacedCopiedTagged + q.SentCopiedTagged,
		ReceiveCalls: q.RecvCalls, SendCalls: q.SendCalls,
	}
}

// QP returns the queue pair below, for addresses and counters.
func (c *conn) QP() *rdma.QP { return c.qp }

// Terminate ends the connection: with nil when what is queued has gone out.
func (c *conn) Terminate(reason error) {
	c.mu.Lock()
	if reason != nil {
		c.failLocked(reason)
	} else if c.toLocked(stateClosing) {
		c.pumpLocked()
		go c.qp.Push() // not here: there may be up-calls inside
	}
	c.mu.Unlock()
	c.begin() // perhaps nobody will start it any more
}

// failLocked ends the connection; the first cause counts.
func (c *conn) failLocked(err error) {
	if c.cause == nil {
		c.cause = err
	}
	c.qp.Abort(err)
}

// breachLocked ends the connection because of what the peer has sent.
func (c *conn) breachLocked(err error) { c.failLocked(fmt.Errorf("%w: %w", nvme.ErrBreach, err)) }

// endError says why down-calls no longer work.
func (c *conn) endError() error {
	if c.cause != nil {
		return c.cause
	}
	return net.ErrClosed
}

// pumpLocked moves work into the send queue, and ends a closing connection once its own
// queue has been handed over.
func (c *conn) pumpLocked() {
	if c.flushed || c.park.silent() {
		return
	}
	c.pump.Pump(c.st == stateReady)
	if c.st == stateClosing && c.pump.Idle() {
		c.toLocked(stateClosed)
		c.qp.Disconnect()
	}
}

// recvHandler is the handler of the receive completion queue: one Send of the peer is
// one capsule, or one response.
func (c *conn) recvHandler(cq *rdma.CQ) {
	if !c.started.Load() {
		<-c.startCh
	}
	wcs := rdmamsg.LendCompletions()
	c.reapReceives(cq, wcs[:])
	wcs.GiveBack()
}

func (c *conn) reapReceives(cq *rdma.CQ, wcs []rdma.WC) {
	for batch := range rdmamsg.Batches(cq, wcs) {
		for i := range batch {
			c.role.received(&batch[i])
		}
		c.role.batchEnd()
		c.role.push(nil, nil) // what this batch has led to
	}
}

// sendHandler is the handler of the send completion queue: what was sent or read is
// complete.
func (c *conn) sendHandler(cq *rdma.CQ) {
	wcs := rdmamsg.LendCompletions()
	c.reapSends(cq, wcs[:])
	wcs.GiveBack()
}

func (c *conn) reapSends(cq *rdma.CQ, wcs []rdma.WC) {
	for c.role.push(cq, wcs) {
	}
}

// finish runs when the queue pair has ended: it collects what was flushed, and ends what
// is left.
func (c *conn) finish() {
	defer close(c.ended)
	<-c.qp.Done()
	<-c.startCh
	var wcs [32]rdma.WC
	c.mu.Lock()
	c.flushed = true
	for c.pump.Reap(c.link.SendCQ, wcs[:]) { // all that was posted is there
	}
	c.mu.Unlock()
	c.reapReceives(c.link.RecvCQ, wcs[:])
	c.mu.Lock()
	err := c.endLocked()
	c.mu.Unlock()
	c.role.end(err)
}

// endLocked ends every transfer and every command that has been answered. It returns why
// the connection has ended: nil when the peer has closed it.
func (c *conn) endLocked() error {
	closed := c.st >= stateClosing
	c.toLocked(stateDead)
	err := c.qp.Err()
	var term *rdma.TerminateError
	var nak *rdma.NAKError
	switch {
	case c.cause != nil:
		err = c.cause
	case errors.As(err, &term), errors.As(err, &nak):
		err = fmt.Errorf("%w: %w", nvme.ErrBreach, err)
	case errors.Is(err, io.EOF), closed && errors.Is(err, rdma.ErrTimeout): // the peer has not closed its side
		err = nil
	}
	if c.cause == nil {
		c.cause = err
	}
	c.pump.Purge(c.endError())
	return err
}
