package iser

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"

	"softiser/internal/fsm"
	"softiser/internal/iscsi"
	"softiser/internal/rdmamsg"
	"softiser/rdma"
)

// linuxControlData is the data that an initiator's receive buffers are known to
// hold in the full feature phase: Linux and libiscsi post this much whatever was
// negotiated.
const linuxControlData = 128

// Conn is one iSER connection; it implements iscsi.Datamover.
type Conn struct {
	role iscsi.Role
	cfg  ConnConfig
	link *rdmamsg.Link
	qp   *rdma.QP // of link
	info rdma.ConnInfo
	inv  bool // remote invalidation was agreed on

	up      iscsi.Upper
	started atomic.Bool
	startCh chan struct{} // closed by Start, or by the end of the connection before it
	unread  unread        // answers that the peer has not read
	ended   chan struct{} // closed when the last up-call has returned

	mu     sync.Mutex // guards what follows
	st     iscsi.ConnState
	cause  error // given to Terminate, or found here
	grace  bool  // Terminate(nil)
	params iscsi.Params
	quiet  bool // target: nothing has come since the end of login
	hello  exchange
	pump   rdmamsg.Pump
	park   *parking // it is to be parked, or is; nil: it is not
	// flushed: the queue pair has ended, and nothing is posted any more; what waits ends
	// with the connection's reason.
	flushed bool
	// untold: the connection has ended before Start, which is to tell of it, with why.
	untold  bool
	why     error
	over    completions // transfers that the upper layer is to be told of
	tasks   taskTable
	windows rdmamsg.Windows

	stats struct{ pdusIn, pdusOut, payloadIn, payloadOut, copied uint64 }

	batch atomic.Uint32 // of received messages, the last one
}

// discard undoes newConn.
func (c *Conn) discard() {
	_ = c.qp.Close() // without the lock: it waits for the receive goroutine
	c.mu.Lock()
	defer c.mu.Unlock()
	c.link.Close(&c.windows)
	c.tasks = taskTable{}
}

// Start implements iscsi.Datamover. What has arrived before waits.
func (c *Conn) Start(u iscsi.Upper) {
	c.mu.Lock()
	c.up = u
	late, why := c.untold, c.why
	c.mu.Unlock()
	if late {
		go u.ConnectionTerminateNotify(why) // not here: the caller is not ready for up-calls yet
		return
	}
	if !c.started.Swap(true) {
		close(c.startCh)
	}
}

// Limits implements iscsi.Datamover.
func (c *Conn) Limits() iscsi.Limits {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := iscsi.Limits{MaxControlData: iscsi.DefaultMRDSL}
	if c.st != iscsi.ConnFull || c.params.SessionType == iscsi.DiscoverySession {
		return l
	}
	l.MaxControlData = min(int(c.params.MaxXmitDataSegmentLength), RecvDataLen)
	if c.role == iscsi.RoleTarget {
		l.MaxControlData = min(l.MaxControlData, linuxControlData)
		l.QuietUntilFirstCommand = c.quiet
	}
	return l
}

// KeyProfile implements iscsi.Datamover.
func (c *Conn) KeyProfile() iscsi.KeyProfile {
	return withLengths(iscsi.KeyProfile{
		RDMA: iscsi.RDMARequired, NoDigests: true,
		RequireHello: c.cfg.RequireHello && c.role == iscsi.RoleInitiator,
	}, c.role)
}

// withLengths adds how long data segments may be over RDMA. What a target sends is bounded by
// Conn.Limits instead, whatever its initiator has declared.
func withLengths(p iscsi.KeyProfile, role iscsi.Role) iscsi.KeyProfile {
	p.RecvDataSegmentLength = RecvDataLen
	if role == iscsi.RoleInitiator {
		p.SendDataSegmentLength = RecvDataLen
	}
	return p
}

// NoticeKeyValues implements iscsi.Datamover.
func (c *Conn) NoticeKeyValues(p *iscsi.Params) {
	c.mu.Lock()
	c.params = *p
	c.mu.Unlock()
}

// Enable implements iscsi.Datamover.
func (c *Conn) Enable() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch c.st {
	case iscsi.ConnLogin:
	case iscsi.ConnFull:
		return errors.New("iser: Enable was called twice")
	default:
		return c.endError()
	}
	c.setState(iscsi.ConnFull)
	if c.params.ISERHelloRequired {
		if err := c.hello.begin(c.info.IRD); err != nil {
			c.failLocked(err)
			return err
		}
	}
	return nil
}

// Recovery implements iscsi.Datamover: RDMA loses nothing, and iSER connections work at
// error recovery level 0 only.
func (c *Conn) Recovery() iscsi.Recovery { return nil }

// Describe implements iscsi.Datamover.
func (c *Conn) Describe() string {
	onOff := map[bool]string{true: "on", false: "off"}
	c.mu.Lock()
	defer c.mu.Unlock()
	i, login := &c.info, ""
	if c.cfg.rfc {
		login = ", login over the stream (RFC 7145 §5.1)"
	}
	return fmt.Sprintf("iSER, %s, IRD %d, ORD %d, remote invalidation %s%s", rdmamsg.Describe(i), i.IRD, i.ORD, onOff[c.inv], login)
}

// Stats implements iscsi.Datamover. Of what the queue pair has copied, only tagged
// messages carry payload; Sends carry PDUs.
func (c *Conn) Stats() iscsi.DatamoverStats {
	q := c.qp.Stats()
	c.mu.Lock()
	s, moving := c.stats, c.over.moving
	c.mu.Unlock()
	return iscsi.DatamoverStats{
		PDUsIn: s.pdusIn, PDUsOut: s.pdusOut,
		PayloadIn: s.payloadIn + c.pump.Fetched.Load(), PayloadOut: s.payloadOut,
		PayloadCopied: s.copied + q.PlacedCopiedTagged + q.SentCopiedTagged,
		ReceiveCalls:  q.RecvCalls, SendCalls: q.SendCalls, OutstandingTransfers: moving,
	}
}

// Backlog implements iscsi.Datamover. RDMA Reads are waited for, not sent.
func (c *Conn) Backlog() iscsi.Backlog {
	sent := c.qp.Stats().WireOut
	c.mu.Lock()
	defer c.mu.Unlock()
	return iscsi.Backlog{Waiting: c.pump.Sending(), Sent: sent, Answers: c.unread.Bytes()}
}

// QP returns the queue pair below, for addresses and counters.
func (c *Conn) QP() *rdma.QP { return c.qp }

// Ended is closed when the last up-call has returned.
func (c *Conn) Ended() <-chan struct{} { return c.ended }

// Terminate implements iscsi.Datamover.
func (c *Conn) Terminate(reason error) {
	c.mu.Lock()
	switch {
	case reason != nil:
		c.failLocked(reason)
	case c.st < iscsi.ConnClosing:
		c.setState(iscsi.ConnClosing)
		c.grace = true
		c.unread.goOn()
		c.pumpLocked()
		go c.qp.Push() // not here: there may be up-calls inside
	}
	c.mu.Unlock()
	if !c.started.Swap(true) {
		close(c.startCh) // perhaps nobody will start it any more
	}
}

// pumpLocked moves work into the send queue, and ends a closing connection once its own
// queue has been handed over.
func (c *Conn) pumpLocked() {
	if c.flushed || c.park.silent() {
		return
	}
	c.pump.Pump(c.st == iscsi.ConnFull)
	if c.st == iscsi.ConnClosing && c.pump.Idle() {
		c.qp.Disconnect()
	}
}

// owner is Conn for its pump. The caller holds c.mu.
type owner Conn

// Moved implements rdmamsg.Owner: a transfer is over.
func (c *owner) Moved(user any, err error) {
	x := user.(*iscsi.Transfer)
	switch {
	case x.Err != nil || err == nil:
	case err == rdmamsg.ErrFault:
		x.Err = iscsi.ErrMemoryFault
	case err == rdmamsg.ErrAborted:
		x.Err = iscsi.ErrAborted
	default:
		x.Err = fmt.Errorf("iser: %w", err)
	}
	c.over.put(x)
}

// Sent implements rdmamsg.Owner: an answer is on its way.
func (c *owner) Sent(cost int) { c.unread.sent(cost) }

// Fail implements rdmamsg.Owner.
func (c *owner) Fail(err error) { (*Conn)(c).failLocked(fmt.Errorf("iser: %w", err)) }

// setState is the only writer of c.st. A transition that the table does not have is a
// mistake of ours; it ends the connection. The caller holds c.mu.
func (c *Conn) setState(to iscsi.ConnState) {
	if !c.st.MayBecome(to) {
		c.failLocked(fsm.Illegal("iser", "a connection", c.st, to))
		return
	}
	c.st = to
}

// failLocked ends the connection; the first cause counts. The caller holds c.mu.
func (c *Conn) failLocked(err error) {
	if c.cause == nil {
		c.cause = err
	}
	c.qp.Abort(err)
}

func (c *Conn) endError() error {
	if c.cause != nil {
		return fmt.Errorf("iser: connection has ended: %w", c.cause)
	}
	return net.ErrClosed
}

// Push implements iscsi.Datamover.
func (c *Conn) Push() { c.push(nil, nil) }

// push takes in what the send queue has completed if cq is not nil, as much as fits wcs,
// tells of the transfers that are over, and transmits what waits; more says that there may
// be other completions. The lock is taken once for each round of up-calls and once more.
func (c *Conn) push(cq *rdma.CQ, wcs []rdma.WC) (more bool) {
	c.mu.Lock()
	if cq != nil {
		more = c.pump.Reap(cq, wcs)
	}
	c.pumpLocked()
	for done := c.over.take(); done != nil; done = c.over.take() {
		c.mu.Unlock()
		c.complete(done) // may queue more
		c.mu.Lock()
		c.over.finished()
		c.pumpLocked()
	}
	c.park.tell()
	c.mu.Unlock()
	c.qp.Push()
	return more
}

// finish runs when the queue pair has ended: it collects what was flushed,
// completes what is left and makes the last up-call.
func (c *Conn) finish() {
	defer close(c.ended)
	<-c.qp.Done()
	<-c.startCh
	var wcs [32]rdma.WC
	c.mu.Lock()
	c.flushed = true
	for c.pump.Reap(c.link.SendCQ, wcs[:]) { // the queue pair is flushed: every completion has arrived
	}
	c.mu.Unlock()
	c.reapReceives(c.link.RecvCQ, wcs[:])
	c.mu.Lock()
	c.setState(iscsi.ConnDead)
	err := c.qp.Err()
	if c.cause != nil {
		err = c.cause
	}
	switch {
	case c.grace && (err == nil || errors.Is(err, io.EOF) || errors.Is(err, rdma.ErrTimeout)):
		err = nil
	case err == nil:
		err = io.EOF
	}
	lost := err
	if lost == nil {
		lost = net.ErrClosed
	}
	c.pump.Purge(lost)
	done := c.over.take()
	c.mu.Unlock()
	c.complete(done)
	c.mu.Lock()
	if done != nil {
		c.over.finished()
	}
	c.over.wait()
	c.mu.Unlock()
	c.discard()
	c.mu.Lock()
	u := c.up
	c.untold, c.why = u == nil, err
	c.mu.Unlock()
	if u != nil {
		u.ConnectionTerminateNotify(err)
	}
}

// complete makes the up-call for transfers that are over.
func (c *Conn) complete(done *iscsi.Transfer) {
	if done != nil {
		c.up.DataCompletionNotify(done)
	}
}
