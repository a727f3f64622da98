package nvmetcp

import (
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"softiser/internal/fsm"
	"softiser/internal/pdustream"
	"softiser/internal/sockio"
)

// conn is what both sides of a connection have in common: the socket, the transmit
// queue and who empties it, the receive goroutine and its place in the stream.
type conn struct {
	role   role
	first  func(b []byte) *Fault // reads the peer's ICReq, ICLen bytes
	sk     *sockio.Conn
	linger time.Duration

	mu   sync.Mutex // guards what follows, and what the role says
	cond sync.Cond  // on mu: tx is not busy any more, or placing or st has changed

	// Guarded by mu.
	st      state
	started bool
	cause   error // why the connection ended; the first one counts
	fin     pdustream.Fin
	digests Digests // changed by the receive goroutine alone
	align   int     // of the data that is sent
	tx      transmitter

	rx receiver // owned by the receive goroutine

	park atomic.Pointer[parking] // changed with mu held: it is to be parked, or is

	ended chan struct{} // closed when Ended has returned

	stats struct{ payloadIn, payloadOut atomic.Uint64 }
}

// role is what a controller and a host do apart. Methods whose names end in Locked are
// called with mu held; the others by the receive goroutine without it, except settle.
type role interface {
	// limits returns what a PDU of type t may have.
	limits(t Type) Limits
	// dispatch finds the place of a PDU's data, with its header complete.
	dispatch(t Type) *Fault
	// claim, release and faulted are pdustream.Parser's, of the memory that dispatch has
	// found.
	claim() bool
	release()
	faulted()
	// finish ends a PDU; good: its data is what the digest says.
	finish(good bool)
	// aheadLocked is how much to read ahead, see pdustream.Parser.
	aheadLocked() int
	// batchEnd is called before what a batch of PDUs has led to is transmitted.
	batchEnd()
	// settleLocked makes the up-calls that sent PDUs lead to, with mu released
	// meanwhile, and reports whether there were any.
	settleLocked() bool
	// termReq is the type of the PDU that refuses one of the peer's.
	termReq() Type
	// owedLocked reports whether data is due that this side has asked for.
	owedLocked() bool
	// settledLocked reports whether no up-call is due that sent PDUs lead to.
	settledLocked() bool
	// resumed follows the end of a parking.
	resumed()
	// end cleans up behind a connection that has ended, and makes the last up-calls.
	end(err error)
}

// init makes c of an established connection. first is how many bytes the peer's first PDU
// has at least, ahead the size of the read-ahead buffer.
func (c *conn) init(r role, nc net.Conn, o sockio.Options, linger time.Duration, first, ahead int) error {
	sk, err := sockio.New(nc, o)
	if err != nil {
		return fmt.Errorf("nvmetcp: %w", err)
	}
	c.role, c.sk, c.linger = r, sk, linger
	c.ended = make(chan struct{})
	c.cond.L = &c.mu
	c.tx.init(c)
	c.rx.init(c, first, ahead)
	return nil
}

// state of a connection:
//
//	stateInit ──ICReq, ICResp──▶ stateReady ──┐
//	     └────────────────────────────────────┴─▶ stateClosing ──▶ stateDead
//
// In stateClosing what is queued still goes out and what arrives is dropped.
type state uint8

const (
	stateInit state = iota
	stateReady
	stateClosing
	stateDead
)

var stateNames = [...]string{"initialisation", "ready", "closing", "dead"}

// String names the state.
func (s state) String() string { return stateNames[s] }

// nextStates is the drawing as a table.
var nextStates = fsm.Of([][]state{
	stateInit:    {stateReady, stateClosing, stateDead},
	stateReady:   {stateClosing, stateDead},
	stateClosing: {stateDead},
	stateDead:    {},
})

// begin starts the receive goroutine.
func (c *conn) begin() {
	c.mu.Lock()
	c.started = true
	c.mu.Unlock()
	go c.run()
}

// Net returns the connection below, for addresses and logs.
func (c *conn) Net() net.Conn { return c.sk.Net() }

// Ended is closed when the last up-call has returned.
func (c *conn) Ended() <-chan struct{} { return c.ended }

// Stats are counters of a connection.
type Stats struct {
	PDUsIn, PDUsOut       uint64
	PayloadIn, PayloadOut uint64 // bytes of commands' data
	Copied                uint64 // bytes of payload that came by way of the read-ahead
	ReceiveCalls          uint64
	SendCalls             uint64
}

// Stats returns the counters.
func (c *conn) Stats() Stats {
	s := &c.stats
	return Stats{
		PDUsIn: c.rx.PDUs.Load(), PDUsOut: c.tx.PDUs.Load(), PayloadIn: s.payloadIn.Load(), PayloadOut: s.payloadOut.Load(),
		Copied: c.rx.Copied.Load(), ReceiveCalls: c.rx.Recvs.Load(), SendCalls: c.tx.Sends.Load(),
	}
}

// Describe says what the connection has agreed on, for logs and status.
func (c *conn) Describe() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return fmt.Sprintf("NVMe/TCP, digests: %s", c.digests)
}

// Backlog tells whether something waits for the peer to read, and how many bytes
// the socket has taken so far.
func (c *conn) Backlog() (waiting bool, sent uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.tx.Empty(), c.tx.SentBytes()
}

// toLocked is the only writer of st. A transition that the table does not have
// would be a mistake of ours; the later state stays.
func (c *conn) toLocked(s state) bool {
	if !nextStates.Has(c.st, s) {
		return false
	}
	c.st = s
	c.cond.Broadcast()
	return true
}

// Terminate ends the connection: with nil when what is queued has gone out.
func (c *conn) Terminate(reason error) {
	c.mu.Lock()
	if reason != nil {
		c.failLocked(reason)
	} else if c.toLocked(stateClosing) {
		c.tx.handOver() // the transmit goroutine sends the rest and FIN
	}
	started := c.started
	c.mu.Unlock()
	if !started {
		_ = c.sk.Close()
	}
}

// failLocked ends the connection at once; the receive goroutine cleans up.
func (c *conn) failLocked(err error) {
	if c.cause == nil {
		c.cause = err
	}
	if c.toLocked(stateDead) {
		c.sk.Interrupt()
	}
}

// refuse tells the peer why, behind what is queued, and closes: nothing of it is
// believed any more. header is the offending PDU's.
func (c *conn) refuse(f *Fault, header []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.st >= stateClosing {
		return
	}
	if c.cause == nil {
		c.cause = f
	}
	p := c.tx.alloc()
	p.Head = (&TermReq{FES: f.FES, FEI: f.FEI, Header: header}).AppendTo(p.Head, c.role.termReq())
	c.tx.push(p)
	c.toLocked(stateClosing)
	c.tx.handOver()
}

// endError says why down-calls no longer work.
func (c *conn) endError() error {
	if c.cause != nil {
		return c.cause
	}
	return net.ErrClosed
}

// run is the receive goroutine: it reads until the connection ends, then cleans up
// behind everybody and makes the last up-calls.
func (c *conn) run() {
	defer close(c.ended)
	err := c.rx.Run()
	for c.again(err) {
		err = c.rx.Run()
	}
	c.mu.Lock()
	c.failLocked(err)
	c.tx.Seize() // nobody transmits any more
	end := c.cause
	if end == io.EOF || c.fin.Begun() && sockio.IsTimeout(end) {
		end = nil
	}
	c.tx.Purge()
	c.tx.Stop()
	c.mu.Unlock()
	c.role.end(end)
}
