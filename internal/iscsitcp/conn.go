package iscsitcp

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"softiser/internal/fsm"
	"softiser/internal/iscsi"
	"softiser/internal/pdustream"
	"softiser/internal/sockio"
)

// Config of a connection. The zero value is good.
type Config struct {
	Socket sockio.Options
	// Upgradable lets the stream become an iSER connection after login (RFC 7145
	// §5.1): RDMAExtensions is offered or accepted, and nothing is read ahead
	// during login. See internal/iser.
	Upgradable bool
	// LoginDataLimit is the longest data segment taken during login, bytes; 0
	// means what RFC 7143 §13.12 says, 8192.
	LoginDataLimit int
	// Linger is how long a graceful Terminate waits for the peer to close its
	// side; 0 means two seconds.
	Linger time.Duration
	// SequenceTimeout is how long the target waits for the next Data-Out of a
	// sequence at error recovery level 1 and above, before it asks for the rest
	// again (RFC 7143 §7.9); 0 means three seconds.
	SequenceTimeout time.Duration
	// Memory bounds what the peers of all connections together leave here: data
	// segments that arrive, answers that are not read, what is kept for recovery.
	// nil: each connection has bounds of its own only.
	Memory iscsi.Memory
}

// Conn is one iSCSI connection over TCP; it implements iscsi.Datamover.
type Conn struct {
	role iscsi.Role
	cfg  Config
	sk   *sockio.Conn
	up   iscsi.Upper

	mu   sync.Mutex // see the package comment
	cond sync.Cond  // tx is not sending or busy any more, or placing or state has changed

	// Guarded by mu.
	st        iscsi.ConnState
	started   bool
	cause     error // why the connection ended; the first one counts
	graceful  bool  // the end was asked for with Terminate(nil)
	fin       pdustream.Fin
	params    iscsi.Params
	expStatSN uint32 // initiator: of the last PDU that the upper layer sent
	enabled   bool
	tx        transmitter
	tasks     taskTable
	gets      getTable
	rec       *recovery // target, error recovery level 1 and above
	placing   any       // *task or *get whose memory the receive goroutine fills now
	resumeRx  bool      // login may go on reading; see receiver.notify
	paused    bool      // the receive goroutine waits for resumeRx
	detached  bool      // the stream was taken away by Detach
	park      *parking  // it is to be parked, or is; nil: it is not

	rx receiver // owned by the receive goroutine

	ended chan struct{} // closed when ConnectionTerminateNotify has returned

	stats struct {
		payloadIn, payloadOut, copied atomic.Uint64
		transfers                     atomic.Int64
	}
}

// New makes a connection for a role over an established TCP connection, which
// belongs to it from now on.
func New(nc net.Conn, role iscsi.Role, cfg Config) (*Conn, error) {
	sk, err := sockio.New(nc, cfg.Socket)
	if err != nil {
		return nil, fmt.Errorf("iscsitcp: %w", err)
	}
	if cfg.LoginDataLimit == 0 {
		cfg.LoginDataLimit = iscsi.DefaultMRDSL
	}
	if cfg.Linger == 0 {
		cfg.Linger = 2 * time.Second
	}
	if cfg.SequenceTimeout == 0 {
		cfg.SequenceTimeout = 3 * time.Second
	}
	c := &Conn{role: role, cfg: cfg, sk: sk, ended: make(chan struct{})}
	c.cond.L = &c.mu
	c.params = iscsi.NewNegotiation(role, iscsi.DefaultSettings(), iscsi.KeyProfile{}, true).Params()
	c.tx.init(c)
	c.tx.unsent.Memory = cfg.Memory
	c.rx.init(c)
	return c, nil
}

// Start begins receiving.
func (c *Conn) Start(u iscsi.Upper) {
	c.mu.Lock()
	c.up, c.started = u, true
	c.mu.Unlock()
	go c.run()
}

// maxDataIns is how many Data-In PDUs are made for one transfer. Each has a header in memory until
// it has been sent, which may be as long as the data: the initiator says how long that is at most.
const maxDataIns = 256

// Limits implements iscsi.Datamover.
func (c *Conn) Limits() iscsi.Limits {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := iscsi.Limits{MaxControlData: iscsi.DefaultMRDSL, RecoveryLevel: 2, CountsIn: true}
	if c.cfg.Upgradable {
		l.RecoveryLevel = 0 // copies kept for retransmission are lost when the stream becomes iSER
	}
	if c.enabled {
		l.MaxControlData = int(c.params.MaxXmitDataSegmentLength)
		l.MaxPut = maxDataIns * l.MaxControlData
	}
	return l
}

// KeyProfile implements iscsi.Datamover.
func (c *Conn) KeyProfile() iscsi.KeyProfile {
	if c.cfg.Upgradable {
		return iscsi.KeyProfile{RDMA: iscsi.RDMAOptional, DeclareTaggedBuffer: c.role == iscsi.RoleInitiator}
	}
	return iscsi.KeyProfile{}
}

// NoticeKeyValues implements iscsi.Datamover.
func (c *Conn) NoticeKeyValues(p *iscsi.Params) {
	c.mu.Lock()
	c.params = *p
	c.mu.Unlock()
}

// Enable implements iscsi.Datamover. The Login PDUs that this end sends never carry digests, so
// that the switch falls on the right byte by itself: the final Login Response goes without
// them, whatever is queued before or after. What comes next has them, whatever it claims to be.
func (c *Conn) Enable() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch c.st {
	case iscsi.ConnLogin:
		c.setState(iscsi.ConnFull)
	case iscsi.ConnFull:
		return errors.New("iscsitcp: Enable was called twice")
	default:
		return c.endError()
	}
	c.enabled = true
	if c.role == iscsi.RoleTarget && c.params.ErrorRecoveryLevel > 0 {
		c.rec = newRecovery(c)
	}
	c.resumeRx = !c.upgradingLocked()
	c.cond.Broadcast()
	return nil
}

// Describe implements iscsi.Datamover.
func (c *Conn) Describe() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return fmt.Sprintf("iSCSI over TCP, HeaderDigest %s, DataDigest %s", c.params.HeaderDigest, c.params.DataDigest)
}

// Stats implements iscsi.Datamover.
func (c *Conn) Stats() iscsi.DatamoverStats {
	s := &c.stats
	return iscsi.DatamoverStats{
		PDUsIn: c.rx.PDUs.Load(), PDUsOut: c.tx.PDUs.Load(),
		PayloadIn: s.payloadIn.Load(), PayloadOut: s.payloadOut.Load(), PayloadCopied: s.copied.Load() + c.rx.Copied.Load(),
		ReceiveCalls: c.rx.Recvs.Load(), SendCalls: c.tx.Sends.Load(), OutstandingTransfers: s.transfers.Load(),
	}
}

// Backlog implements iscsi.Datamover.
func (c *Conn) Backlog() iscsi.Backlog {
	c.mu.Lock()
	defer c.mu.Unlock()
	return iscsi.Backlog{Waiting: !c.tx.Empty(), Sent: c.tx.SentBytes(), Answers: c.tx.unsent.Bytes()}
}

// Net returns the connection below, for addresses and logs.
func (c *Conn) Net() net.Conn { return c.sk.Net() }

// Terminate implements iscsi.Datamover.
func (c *Conn) Terminate(reason error) {
	c.mu.Lock()
	if reason != nil {
		c.failLocked(reason)
	} else if c.st < iscsi.ConnClosing {
		c.setState(iscsi.ConnClosing)
		c.graceful = true
		c.resumeRx = true
		c.cond.Broadcast()
		c.tx.handOver() // the transmit goroutine sends the rest and FIN
	}
	started := c.started
	c.mu.Unlock()
	if !started {
		_ = c.sk.Close()
	}
}

// setState is the only writer of c.st. A transition that the table does not have is a
// mistake of ours; it ends the connection. The caller holds c.mu.
func (c *Conn) setState(to iscsi.ConnState) {
	if !c.st.MayBecome(to) {
		c.failLocked(fsm.Illegal("iscsitcp", "a connection", c.st, to))
		return
	}
	c.st = to
}

// failLocked ends the connection at once; the receive goroutine cleans up.
func (c *Conn) failLocked(err error) {
	if c.cause == nil {
		c.cause = err
	}
	if c.st == iscsi.ConnDead {
		return
	}
	c.setState(iscsi.ConnDead)
	c.sk.Interrupt()
	c.cond.Broadcast()
}

// endError says why down-calls no longer work.
func (c *Conn) endError() error {
	if c.cause != nil {
		return fmt.Errorf("iscsitcp: connection has ended: %w", c.cause)
	}
	return net.ErrClosed
}

// run is the receive goroutine: it reads until the connection ends, then cleans
// up behind everybody and makes the last up-call.
func (c *Conn) run() {
	defer close(c.ended)
	err := c.rx.receive()
	c.mu.Lock()
	if err == errDetached {
		c.mu.Unlock()
		return
	}
	orderly := c.graceful && (err == io.EOF || sockio.IsTimeout(err)) && c.cause == nil
	c.failLocked(err)
	c.tx.Seize()
	end := c.cause
	if orderly {
		end = nil
	}
	lost := end
	if lost == nil {
		lost = net.ErrClosed
	}
	lost = fmt.Errorf("%w: %w", iscsi.ErrConnectionLost, lost)
	done := c.tx.purge(lost)
	done = c.gets.purge(done, lost)
	c.tasks.purge()
	if c.rec != nil {
		c.rec.ended()
	}
	c.tx.Stop()
	c.mu.Unlock()
	c.complete(done)
	if err == io.EOF {
		_ = sockio.Finish(c.sk) // else the peer, who has said that nothing follows, could not tell our end from a cut
	}
	_ = c.sk.Close()
	c.up.ConnectionTerminateNotify(end)
}

// complete makes the up-call for transfers that are over.
func (c *Conn) complete(done *iscsi.Transfer) {
	if done != nil {
		c.stats.transfers.Add(-int64(done.Linked()))
		c.up.DataCompletionNotify(done)
	}
}

// Ended is closed when the last up-call has returned.
func (c *Conn) Ended() <-chan struct{} { return c.ended }
