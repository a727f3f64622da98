package iscsi

import (
	"errors"
	"net/netip"
	"sync/atomic"
	"syscall"
	"time"

	"go.uber.org/zap"

	"softiser/internal/fsm"
	"softiser/internal/iscsi"
	"softiser/target/portal"
)

// connState is where a connection is in its life:
//
//	                final Login Response          Logout Response, AsyncEvent 3 queued
//	login ─────────────▶ full feature ─────────────────▶ logged out ─┐
//	  │ └─ its session ends before the response is out ──────▲       │ transport has ended
//	  └──────────┬────────────┬──────────────────────────────┬───────┤
//	             ▼ refused, timed out, protocol error, Kill  ▼       ▼
//	          closing ───────────────────────────────────────────▶ closed
type connState uint8

const (
	connLogin connState = iota
	connFull
	connLoggedOut
	connClosing
	connClosed
)

// nextConn is the drawing as a table.
var nextConn = fsm.Of([][]connState{
	connLogin:     {connFull, connLoggedOut, connClosing, connClosed},
	connFull:      {connLoggedOut, connClosing, connClosed},
	connLoggedOut: {connClosing, connClosed},
	connClosing:   {connClosed},
	connClosed:    {},
})

func (s connState) String() string {
	return [...]string{"login", "full feature", "logged out", "closing", "closed"}[s]
}

// Reasons for which the target itself ends a connection.
var (
	errLoginTimeout   = errors.New("login timed out")
	errNopTimeout     = errors.New("the initiator does not answer NOP-In")
	errFirstCommand   = errors.New("the initiator has logged in and sent no command")
	errNotRead        = errors.New("the initiator does not read what is sent to it")
	errDataTimeout    = errors.New("the initiator does not send the data of a WRITE")
	errGap            = errors.New("commands wait for one with an earlier CmdSN that does not come")
	errReinstated     = errors.New("the initiator logged in again (session reinstatement)")
	errConnReinstated = errors.New("the initiator logged the connection in again (connection reinstatement)")
	errLoggedOut      = errors.New("removed for recovery by a logout on another connection")
	errKilled         = errors.New("closed by the administrator")
	errShutdown       = errors.New("the target is shutting down")
	errColdReset      = errors.New("TARGET COLD RESET")
	errHangUp         = errors.New("the initiator neither reads what was sent nor closes the connection")
	errRemoved        = errors.New("the target has been removed")
	errEvicted        = errors.New("too many connections wait for login; the oldest makes room")
	errNoLogout       = errors.New("the initiator closed the connection without logout")
	errUnexpected     = errors.New("unexpected PDU during login")
)

// conn is one connection: the upper layer of its datamover. Until its login is
// done it has no session. Its parts: what is sent (out), whether somebody is there (beat),
// what has been acknowledged (acks), the login and Text negotiations.
type conn struct {
	srv           *Frontend
	portal        *portal.Portal
	kind          portal.Transport
	dm            iscsi.Datamover
	raw           syscall.RawConn // the socket, which belongs to dm; nil over RoCE
	local, remote netip.AddrPort
	shown         certificate
	opened        time.Time
	entered       time.Duration // full feature phase; since Frontend.epoch
	log           *zap.Logger

	state connStateVar
	place *portal.Place // until login is done
	timer *time.Timer   // login deadline, then NOP
	login *loginPhase   // until login is done; touched by the receive goroutine, or by the one it has handed the login to

	// Set before the full feature phase.
	sess *session
	cid  uint16
	// limits and params change in a text negotiation only, under sess.mu and out.mu:
	// either is enough to read them. params repeats what is the session's.
	limits iscsi.Limits
	params iscsi.Params

	slots slots // guarded by sess.mu
	// clock is when the first command of the current batch arrived, or one was last answered;
	// since Frontend.epoch. The commands of a batch arrive together and share it, which saves
	// asking for the time. Guarded by sess.mu, like batch (iscsi.PDU.Batch).
	clock      time.Duration
	batch      uint32
	replaced   bool // guarded by sess.mu: another connection takes its CID
	recovering bool // guarded by sess.mu: removed for recovery (RFC 7143 §11.14.1); its tasks stay
	abandoned  bool // guarded by sess.mu: its tasks have been ended, and it starts no others

	out  sender
	beat heartbeat
	acks ackWaits
	text textExchange // a Text negotiation over several PDUs

	counters connCounters
	heard    atomic.Uint64 // up-calls that have brought PDUs
	quiet    atomic.Bool   // nothing unsolicited may be sent before the first command
	hungUp   atomic.Bool   // it has been logged out, be it closed by now or not

	ended chan struct{} // closed after ConnectionTerminateNotify
}

// assemble gives the parts their reference to c.
func (c *conn) assemble() {
	c.out.c, c.beat.c, c.acks.c, c.text.c = c, c, c, c
}

// connStateVar is a connState with one setter.
type connStateVar struct{ v atomic.Uint32 }

func (s *connStateVar) get() connState { return connState(s.v.Load()) }

// advance changes the state if the table allows it, and reports whether it did. A refusal
// is no error: several goroutines may end a connection at once, and one of them wins.
func (s *connStateVar) advance(to connState) bool {
	for {
		from := s.v.Load()
		if !nextConn.Has(connState(from), to) {
			return false
		}
		if s.v.CompareAndSwap(from, uint32(to)) {
			return true
		}
	}
}

// Sequence implements iscsi.Upper.
func (c *conn) Sequence() iscsi.Sequence {
	q := iscsi.Sequence{StatSN: c.out.statSN.Load()}
	if c.sess != nil {
		w := &c.sess.order.seq.win
		q.ExpCmdSN, q.MaxCmdSN = w.show()
		w.told.Store(q.MaxCmdSN)
	}
	return q
}

// close ends the connection at once. It is safe from every goroutine and
// without effect on one that is already closing.
func (c *conn) close(reason error) {
	if c.state.advance(connClosing) {
		c.dm.Terminate(reason)
	}
}

// protocolError ends a connection whose initiator has broken the rules in a way
// that error recovery level 0 cannot repair (RFC 7143 §7.1.4.4), and releases p. what
// describes the violation.
func (c *conn) protocolError(p *iscsi.PDU, what string) {
	c.counters.protocolErrors.Add(1)
	c.srv.limits.protocol.Warn(c.log, "connection closed: protocol error", zap.String("reason", what),
		zap.Stringer("pdu", p.BHS.Opcode()))
	p.Release()
	c.close(errors.New("protocol error: " + what))
}

// hangUpTime is how long a connection may take to end in an orderly way. A peer that
// does not read would keep it for ever.
const hangUpTime = 5 * time.Second

// hangUp closes a connection that has been logged out, after what is queued has been sent.
func (c *conn) hangUp() {
	c.hungUp.Store(true)
	if c.state.advance(connLoggedOut) {
		c.timer.Reset(hangUpTime)
		c.dm.Terminate(nil)
	}
}

// discardKept gives up what the datamover of c keeps for recovery.
func (c *conn) discardKept() {
	if r := c.dm.Recovery(); r != nil {
		r.Discard()
	}
}
