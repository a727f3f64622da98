package nvmetcp

import (
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"softiser/internal/nvme"
	"softiser/internal/sockio"
)

// Config of a controller's connections. The zero value is good.
type Config struct {
	Socket sockio.Options
	// MaxH2CData is the most data that a host may send in one PDU, bytes; a
	// multiple of 4096. Default 4 MiB, as Linux's target.
	MaxH2CData uint32
	// InCapsule is the most in-capsule data that a command may have, bytes. Every
	// Fabrics and admin command may have 8192, so it is no less. Default 16 KiB.
	InCapsule uint32
	// Memory bounds the in-capsule data of all connections; nil: nothing does.
	Memory nvme.Memory
	// Linger is how long a connection that ends waits for the peer to close its
	// side, so that it reads why. Default two seconds.
	Linger time.Duration
}

const (
	defaultMaxH2CData = 4 << 20
	defaultInCapsule  = 16 << 10
	minInCapsule      = 8 << 10
	defaultLinger     = 2 * time.Second
)

func (c *Config) fill() {
	if c.MaxH2CData == 0 {
		c.MaxH2CData = defaultMaxH2CData
	}
	if c.InCapsule == 0 {
		c.InCapsule = defaultInCapsule
	}
	c.InCapsule = max(c.InCapsule, minInCapsule)
	if c.Linger == 0 {
		c.Linger = defaultLinger
	}
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

// nextStates is the drawing as a table, a bit for each state that may follow.
var nextStates = [...]uint8{
	stateInit:    1<<stateReady | 1<<stateClosing | 1<<stateDead,
	stateReady:   1<<stateClosing | 1<<stateDead,
	stateClosing: 1 << stateDead,
	stateDead:    0,
}

// Controller is the controller's side of one queue's connection; it implements
// nvme.QueueTransport.
type Controller struct {
	cfg Config
	sk  *sockio.Conn
	up  nvme.QueueUpper

	mu   sync.Mutex // see the package comment
	cond sync.Cond  // on mu: sending, placing, tx.busy or st has changed

	// Guarded by mu.
	st        state
	started   bool
	cause     error // why the connection ended; the first one counts
	finSent   bool
	lingerEnd time.Time // when finSent: the peer is not listened to any longer
	digests   Digests
	align     int // of the data of C2HData
	slots     slots
	gets      getTable
	placing   *get // whose memory the receive goroutine fills now
	tx        txQueue

	rx rxState // owned by the receive goroutine

	txWake chan struct{} // wakes the transmit goroutine up; nil until it is first needed
	ended  chan struct{} // closed when Ended has returned

	stats struct{ pdusIn, pdusOut, payloadIn, payloadOut, copied, recvs, sends atomic.Uint64 }
}

// NewController makes the controller's side of an established TCP connection, which
// belongs to it from now on.
func NewController(nc net.Conn, cfg Config) (*Controller, error) {
	cfg.fill()
	sk, err := sockio.New(nc, cfg.Socket)
	if err != nil {
		return nil, fmt.Errorf("nvmetcp: %w", err)
	}
	c := &Controller{cfg: cfg, sk: sk, ended: make(chan struct{})}
	c.cond.L = &c.mu
	c.slots.init(1, cfg.Memory)
	c.tx.fn = c.txReady
	c.rx.init(c)
	return c, nil
}

// Start implements nvme.QueueTransport.
func (c *Controller) Start(u nvme.QueueUpper) {
	c.mu.Lock()
	c.up, c.started = u, true
	c.mu.Unlock()
	go c.run()
}

// SetEntries implements nvme.QueueTransport.
func (c *Controller) SetEntries(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.slots.grow(n)
}

// MaxInCapsule implements nvme.QueueTransport.
func (c *Controller) MaxInCapsule() int { return int(c.cfg.InCapsule) }

// Net returns the connection below, for addresses and logs.
func (c *Controller) Net() net.Conn { return c.sk.Net() }

// Ended is closed when the last up-call has returned.
func (c *Controller) Ended() <-chan struct{} { return c.ended }

// Stats are counters of a connection.
type Stats struct {
	PDUsIn, PDUsOut       uint64
	PayloadIn, PayloadOut uint64 // bytes of commands' data
	Copied                uint64 // bytes of payload that came by way of the read-ahead
	ReceiveCalls          uint64
	SendCalls             uint64
}

// Stats returns the counters.
func (c *Controller) Stats() Stats {
	s := &c.stats
	return Stats{
		PDUsIn: s.pdusIn.Load(), PDUsOut: s.pdusOut.Load(), PayloadIn: s.payloadIn.Load(), PayloadOut: s.payloadOut.Load(),
		Copied: s.copied.Load(), ReceiveCalls: s.recvs.Load(), SendCalls: s.sends.Load(),
	}
}

// Describe says what the connection has agreed on, for logs and status.
func (c *Controller) Describe() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return fmt.Sprintf("NVMe/TCP, digests: %s", c.digests)
}

// Backlog tells whether something waits for the peer to read, and how many bytes
// the socket has taken so far.
func (c *Controller) Backlog() (waiting bool, sent uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.tx.head != nil, c.tx.sent
}

// toLocked is the only writer of st. A transition that the table does not have
// would be a mistake of ours; the later state stays.
func (c *Controller) toLocked(s state) bool {
	if nextStates[c.st]&(1<<s) == 0 {
		return false
	}
	c.st = s
	c.cond.Broadcast()
	return true
}

// Terminate implements nvme.QueueTransport. A [Fault] is told to the peer.
func (c *Controller) Terminate(reason error) {
	c.mu.Lock()
	if reason != nil {
		c.failLocked(reason)
	} else if c.toLocked(stateClosing) {
		c.handOverLocked() // the transmit goroutine sends the rest and FIN
	}
	started := c.started
	c.mu.Unlock()
	if !started {
		_ = c.sk.Close()
	}
}

// failLocked ends the connection at once; the receive goroutine cleans up.
func (c *Controller) failLocked(err error) {
	if c.cause == nil {
		c.cause = err
	}
	if c.toLocked(stateDead) {
		c.sk.Interrupt()
	}
}

// refuse tells the peer why, behind what is queued, and closes: nothing of it is
// believed any more. header is the offending PDU's.
func (c *Controller) refuse(f *Fault, header []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.st >= stateClosing {
		return
	}
	if c.cause == nil {
		c.cause = f
	}
	p := c.tx.alloc()
	p.head = (&TermReq{FES: f.FES, FEI: f.FEI, Header: header}).AppendTo(p.head, TypeC2HTermReq)
	p.length = len(p.head)
	c.tx.push(p)
	c.toLocked(stateClosing)
	c.handOverLocked()
}

// endError says why down-calls no longer work.
func (c *Controller) endError() error {
	if c.cause != nil {
		return c.cause
	}
	return net.ErrClosed
}

// run is the receive goroutine: it reads until the connection ends, then cleans up
// behind everybody and makes the last up-calls.
func (c *Controller) run() {
	defer close(c.ended)
	err := c.receive()
	c.mu.Lock()
	c.failLocked(err)
	for c.tx.busy {
		c.cond.Wait()
	}
	end := c.cause
	if end == io.EOF || c.finSent && sockio.IsTimeout(end) {
		end = nil
	}
	c.slots.cut(c.rx.cmd)
	c.rx.cmd = nil
	c.tx.busy = true
	c.tx.abandon()
	done := c.tx.done
	c.tx.done = nil
	gets := c.gets.purge()
	if c.txWake != nil {
		close(c.txWake)
	}
	c.mu.Unlock()
	lost := end
	if lost == nil {
		lost = net.ErrClosed
	}
	for _, g := range gets {
		c.up.DataArrived(&g.cmd.Command, lost)
	}
	c.sentAll(done)
	c.mu.Lock()
	c.endTurnLocked()
	c.mu.Unlock()
	c.Push() // ends what DataArrived was answered with
	_ = c.sk.Close()
	c.up.Ended(end)
}
