package nvmerdma

import (
	"context"
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

// Controller is the controller's side of a connection. It implements
// nvme.QueueTransport.
type Controller struct {
	link *rdmamsg.Link
	qp   *rdma.QP // of link
	info rdma.ConnInfo
	req  Request

	up      nvme.QueueUpper
	started atomic.Bool
	startCh chan struct{} // closed by Start, or by the end of the connection before it
	ended   chan struct{} // closed when Ended has returned

	mu      sync.Mutex // guards what follows
	st      state
	cause   error // why the connection ended; the first one counts
	pump    rdmamsg.Pump
	windows rdmamsg.Windows // none: a controller opens nothing to its host
	slots   slots
	entries int // of the queue
	open    int // commands whose response has not been queued
	due     dueList
	// upcalling counts goroutines that are inside upcalls; cond tells of each that leaves.
	upcalling int
	cond      sync.Cond

	recvWC [32]rdma.WC // of the receive handler
	sendWC [32]rdma.WC // of the send handler

	stats struct{ capsulesIn, capsulesOut, payloadIn, payloadOut, copied atomic.Uint64 }
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
func (c *Controller) toLocked(s state) bool {
	if s <= c.st {
		return false
	}
	c.st = s
	return true
}

// AcceptConfig is how a connection is accepted.
type AcceptConfig struct {
	RDMA rdma.ConnParams // PrivateData is set by this package
	// Queues is the largest identifier of an I/O queue, Entries the size of the largest
	// queue.
	Queues, Entries int
}

// Accept accepts what is an open TCP connection whose next bytes are an MPA Request, or
// refuses it with the status that NVMe has for that. It takes nc over.
func (d *Device) Accept(ctx context.Context, nc net.Conn, cfg AcceptConfig) (*Controller, error) {
	r, err := rdma.Server(ctx, nc, &rdma.ServerConfig{Timeout: cfg.RDMA.Timeout})
	if err != nil {
		return nil, fmt.Errorf("nvmerdma: %w", err)
	}
	req, err := check(r, &cfg)
	if err != nil {
		var no *RejectError
		if errors.As(err, &no) {
			_ = r.Reject(no.appendTo(nil))
		}
		return nil, err
	}
	c, err := d.newController()
	if err != nil {
		_ = r.Reject((&RejectError{Status: RejectNoResources}).appendTo(nil))
		return nil, err
	}
	c.req = req
	p := cfg.RDMA
	p.PrivateData = appendAccept(nil, uint16(min(cfg.Entries, int(req.HostSend)+1)))
	if err := r.Accept(ctx, c.qp, &p); err != nil {
		c.discard()
		return nil, fmt.Errorf("nvmerdma: %w", err)
	}
	info := c.qp.Info()
	c.mu.Lock()
	c.info, c.pump.ORD = info, info.ORD
	c.mu.Unlock()
	return c, nil
}

// check looks whether a request can be accepted.
func check(r *rdma.ConnRequest, cfg *AcceptConfig) (Request, error) {
	req, err := ParseRequest(r.PrivateData())
	switch {
	case err != nil:
	case int(req.QID) > cfg.Queues:
		err = &RejectError{RejectQID, fmt.Sprintf("queue %d, there are %d", req.QID, cfg.Queues)}
	case r.Rev() >= 2 && r.IRD() == 0:
		// Revision 1 of MPA does not tell.
		err = &RejectError{RejectIRD, "the data of its commands could not be fetched"}
	}
	return req, err
}

func (d *Device) newController() (*Controller, error) {
	c := &Controller{startCh: make(chan struct{}), ended: make(chan struct{}), entries: 1}
	c.cond.L = &c.mu
	var err error
	c.link, err = d.NewLink(rdmamsg.LinkConfig{Sent: c.sendHandler, Received: c.recvHandler, Disconnected: func() { go c.finish() }})
	if err != nil {
		return nil, fmt.Errorf("nvmerdma: %w", err)
	}
	c.qp, c.windows = c.link.QP, c.link.Windows()
	c.pump.Init(c.link, (*owner)(c))
	return c, nil
}

// discard undoes newController.
func (c *Controller) discard() {
	_ = c.qp.Close() // without the lock: it waits for the receive goroutine
	c.mu.Lock()
	defer c.mu.Unlock()
	c.link.Close(&c.windows)
}

// Request returns the private data of the host's request.
func (c *Controller) Request() Request { return c.req }

// Start implements nvme.QueueTransport. What has arrived before waits.
func (c *Controller) Start(u nvme.QueueUpper) {
	c.mu.Lock()
	c.up = u
	c.mu.Unlock()
	if !c.started.Swap(true) {
		close(c.startCh)
	}
}

// SetEntries implements nvme.QueueTransport.
func (c *Controller) SetEntries(n int) {
	c.mu.Lock()
	c.entries = n
	c.mu.Unlock()
}

// MaxInCapsule implements nvme.QueueTransport.
func (c *Controller) MaxInCapsule() int { return InCapsule }

// NamesHostMemory implements nvme.QueueTransport.
func (c *Controller) NamesHostMemory(k nvme.SGLKind) bool {
	return k == nvme.SGLKeyed || k == nvme.SGLKeyedInvalidate
}

// Ended is closed when the last up-call has returned.
func (c *Controller) Ended() <-chan struct{} { return c.ended }

// Describe implements nvme.QueueTransport.
func (c *Controller) Describe() string {
	onOff := map[bool]string{true: "on", false: "off"}
	i := &c.info
	return fmt.Sprintf("NVMe/RDMA, MPA revision %d, CRC %s, FPDU %d, IRD %d, ORD %d", i.MPA.Rev, onOff[i.CRC], i.MPA.FPDUSize, i.IRD, i.ORD)
}

// Backlog implements nvme.QueueTransport. RDMA Reads are waited for, not sent.
func (c *Controller) Backlog() (waiting bool, sent uint64) {
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
func (c *Controller) Stats() Stats {
	s, q := &c.stats, c.qp.Stats()
	return Stats{
		CapsulesIn: s.capsulesIn.Load(), CapsulesOut: s.capsulesOut.Load(),
		PayloadIn: s.payloadIn.Load() + c.pump.Fetched.Load(), PayloadOut: s.payloadOut.Load(),
		Copied:       s.copied.Load() + q.PlacedCopiedTagged + q.SentCopiedTagged,
		ReceiveCalls: q.RecvCalls, SendCalls: q.SendCalls,
	}
}

// QP returns the queue pair below, for addresses and counters.
func (c *Controller) QP() *rdma.QP { return c.qp }

// Terminate implements nvme.QueueTransport.
func (c *Controller) Terminate(reason error) {
	c.mu.Lock()
	if reason != nil {
		c.failLocked(reason)
	} else if c.toLocked(stateClosing) {
		c.pumpLocked()
		go c.qp.Push() // not here: there may be up-calls inside
	}
	c.mu.Unlock()
	if !c.started.Swap(true) {
		close(c.startCh) // nobody will start it any more
	}
}

// failLocked ends the connection; the first cause counts.
func (c *Controller) failLocked(err error) {
	if c.cause == nil {
		c.cause = err
	}
	c.qp.Abort(err)
}

// breachLocked ends the connection because of what the host has sent.
func (c *Controller) breachLocked(err error) { c.failLocked(fmt.Errorf("%w: %w", nvme.ErrBreach, err)) }

// endError says why down-calls no longer work.
func (c *Controller) endError() error {
	if c.cause != nil {
		return c.cause
	}
	return net.ErrClosed
}

// pumpLocked moves work into the send queue, and ends a closing connection once its own
// queue has been handed over.
func (c *Controller) pumpLocked() {
	c.pump.Pump(c.st == stateReady)
	if c.st == stateClosing && c.pump.Idle() {
		c.toLocked(stateClosed)
		c.qp.Disconnect()
	}
}

// Push implements nvme.QueueTransport.
func (c *Controller) Push() {
	for {
		c.mu.Lock()
		c.pumpLocked()
		due := c.takeDueLocked()
		c.mu.Unlock()
		if due == nil {
			break
		}
		c.upcalls(due) // may queue more
	}
	c.qp.Push()
}

// takeDueLocked takes the up-calls that are due, for upcalls.
func (c *Controller) takeDueLocked() *command {
	k := c.due.take()
	if k != nil {
		c.upcalling++
	}
	return k
}

// upcalls makes up-calls, and frees the slots of the commands that have ended.
func (c *Controller) upcalls(k *command) {
	var ended *command
	for k != nil {
		next := k.next
		if k.next = nil; k.ended {
			c.up.Sent(&k.Command)
			k.next, ended = ended, k
		} else {
			err := k.err
			k.err = nil
			c.up.DataArrived(&k.Command, err)
		}
		k = next
	}
	c.mu.Lock()
	for ended != nil {
		k, ended = ended, ended.next
		c.slots.put(k)
	}
	c.upcalling--
	c.cond.Broadcast()
	c.mu.Unlock()
}

// finish runs when the queue pair has ended: it collects what was flushed, ends what is
// left and makes the last up-calls.
func (c *Controller) finish() {
	defer close(c.ended)
	<-c.qp.Done()
	<-c.startCh
	var wcs [32]rdma.WC
	c.reapSends(c.link.SendCQ, wcs[:])
	c.reapReceives(c.link.RecvCQ, wcs[:])
	c.mu.Lock()
	err := c.endLocked()
	u := c.up
	c.mu.Unlock()
	c.Push() // what is due, and what that was answered with
	c.mu.Lock()
	for c.upcalling > 0 {
		c.cond.Wait()
	}
	c.mu.Unlock()
	c.discard()
	if u != nil {
		u.Ended(err)
	}
}

// endLocked ends every transfer and every command that has been answered. It returns why
// the connection has ended: nil when the host has closed it.
func (c *Controller) endLocked() error {
	c.toLocked(stateDead)
	err := c.qp.Err()
	var term *rdma.TerminateError
	switch {
	case c.cause != nil:
		err = c.cause
	case errors.As(err, &term):
		err = fmt.Errorf("%w: %w", nvme.ErrBreach, err)
	case errors.Is(err, io.EOF):
		err = nil
	}
	if c.cause == nil {
		c.cause = err
	}
	c.pump.Purge(c.endError())
	return err
}

// owner is Controller for its pump. The caller holds mu.
type owner Controller

// Moved implements rdmamsg.Owner: a transfer is over.
func (o *owner) Moved(user any, err error) {
	c := (*Controller)(o)
	switch k := user.(type) {
	case *putOf:
		k.puts--
		c.endDroppedLocked((*command)(k))
	case *command:
		c.gotLocked(k, err)
	}
}

// Sent implements rdmamsg.Owner: the response to the command of a slot has gone.
func (o *owner) Sent(tag int) {
	c := (*Controller)(o)
	k := c.slots.all[tag-1]
	k.ended = true
	c.due.put(k)
}

// Fail implements rdmamsg.Owner.
func (o *owner) Fail(err error) { (*Controller)(o).failLocked(fmt.Errorf("nvmerdma: %w", err)) }
