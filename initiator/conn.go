package initiator

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"softiser/internal/fsm"
	"softiser/internal/iscsi"
)

// errConnGone says that a connection ended while something waited on it.
var errConnGone = errors.New("connection lost")

// connState is where a connection is in its life:
//
//	      login over         the session is active      the target asks for a logout
//	login ----------> entered -----------------> flowing ------------------> leaving
//	  |                  |                          |                           |
//	  |                  +----- a mistake, ours or the target's: doomed <-------+
//	  |                  |                          |                           |
//	  +------------------+---- the transport has ended: dead <------------------+
//
// doomed goes to dead as well: Terminate has been asked for, and that is how it ends.
type connState uint8

const (
	connLogin   connState = iota
	connEntered           // full feature phase; only the session's own commands are sent
	connFlowing           // commands of requests are sent
	connLeaving           // what is under way may end; then logout and a new login
	connDoomed            // nothing sensible can happen any more
	connDead
)

var connNames = [...]string{"login", "entered", "flowing", "leaving", "doomed", "dead"}

// String returns the state's name.
func (s connState) String() string { return connNames[s] }

// nextConn is the drawing of connState.
var nextConn = fsm.Of([][]connState{
	connLogin:   {connEntered, connDead},
	connEntered: {connFlowing, connDoomed, connDead},
	connFlowing: {connLeaving, connDoomed, connDead},
	connLeaving: {connDoomed, connDead},
	connDoomed:  {connDead},
	connDead:    {},
})

// conn is one connection of a session, and the iscsi.Upper of its datamover. In the full
// feature phase s.mu guards every field below s.
type conn struct {
	dm        iscsi.Datamover
	login     *login        // runs on the receive goroutine until it is over
	gone      chan struct{} // closed by ConnectionTerminateNotify
	notifying atomic.Int32  // ControlNotify calls in progress

	s            *Session // nil: discovery
	text         *textExchange
	state        connState // of a session's connection
	dead         error     // why it is
	expStatSN    uint32
	maxImmediate uint32        // longest data segment of a command, bytes
	maxTransfer  int64         // longest data of one command, bytes; 0: no limit
	countsIn     bool          // the transport tells how much of a READ has arrived
	turning      bool          // these limits will change; see takeLimits
	heard        uint64        // PDUs received
	seen         uint64        // signs of life at the last tick, see watch.connection
	quiet        int64         // clock.now (ns) when something was last heard, or the time-out of a ping began
	pinged       bool          // a NOP-Out of ours is not answered yet
	early        bool          // that NOP-Out was sent before NopInterval was over: NopTimeout does not run yet
	proved       bool          // a command was answered: the session makes progress
	waitTold     bool          // a Logout Response has set wait
	wait         time.Duration // Time2Wait of that response (RFC 7143 §11.15.3)
}

// setState is the only place where the state changes. The caller holds s.mu, or is the login.
func (c *conn) setState(to connState) {
	if c.state != to && !nextConn.Has(c.state, to) {
		c.s.illegal("a connection", c.state, to)
		return
	}
	c.state = to
}

// works reports whether PDUs still come and go. The caller holds s.mu.
func (c *conn) works() bool {
	return c.state == connEntered || c.state == connFlowing || c.state == connLeaving
}

// doom ends a connection on which nothing sensible can happen any more. The
// caller holds s.mu; the end itself follows without it.
func (c *conn) doom(err error) {
	if !c.works() {
		return
	}
	c.setState(connDoomed)
	c.s.out.later = append(c.s.out.later, func() { c.dm.Terminate(err) })
}

// violation dooms the connection for something that no target may send.
func (c *conn) violation(format string, args ...any) {
	c.doom(fmt.Errorf("the target broke the protocol: "+format, args...))
}

// illegal handles a transition that its table does not have, an internal error: it ends the
// connection, so that recovery starts from a known state. The caller holds s.mu.
func (s *Session) illegal(what string, from, to fmt.Stringer) {
	err := fsm.Illegal("initiator", what, from, to)
	if c := s.conn; c != nil {
		c.doom(err)
	}
}

// queue gives a PDU to the datamover. A PDU that it does not take ends the
// connection. The caller holds s.mu.
func (c *conn) queue(p *iscsi.PDU) {
	if err := c.dm.SendControl(p); err != nil {
		c.doom(err)
	}
}

// queueImmediate queues the session's scratch PDU, an immediate request without data. Immediate
// requests use no CmdSN (RFC 7143 §4.2.2.1). The caller holds s.mu.
func (c *conn) queueImmediate() {
	p := &c.s.pdu
	p.BHS.SetCmdSN(c.s.win.CmdSN)
	p.BHS.SetExpStatSN(c.expStatSN)
	p.AHS, p.Data, p.Bufs = nil, nil, nil
	c.queue(p)
}

// kick transmits what is queued, unless the datamover is delivering answers: then it pushes
// by itself after the batch. The caller queues before it calls kick, so that what it queued
// before notifying was seen set is part of that push.
func (c *conn) kick() {
	if c.notifying.Load() == 0 {
		c.dm.Push()
	}
}

// unsolicited returns how many bytes of a WRITE of n bytes travel in the command PDU
// (immediate), and how many travel without R2T in all (unsolicited, immediate included). ahs is
// the length of the command's additional header segments. Over iSER (RFC 7145), where the
// target reads data straight into its volume, only writes that fit into the command as a whole
// are sent with it: the target would have to copy a part. Additional header segments count
// against that room, because Linux's target has no other for them.
func (c *conn) unsolicited(n, ahs uint32) (immediate, unsolicited uint32) {
	if c.turning {
		c.takeLimits(c.dm.Limits())
	}
	immediate, unsolicited = c.login.params.UnsolicitedLimit(n)
	if immediate > c.maxImmediate {
		immediate = c.maxImmediate
		if c.login.params.InitialR2T {
			unsolicited = immediate
		}
	}
	if c.login.params.RDMAExtensions && (immediate < n || immediate+ahs > c.maxImmediate) {
		return 0, 0
	}
	return immediate, unsolicited
}

// takeLimits notes the limits of the transport. A stream that is turning into an iSER
// connection (RFC 7145 §5.1) knows its limits only afterwards; until then it sets
// QuietUntilFirstCommand, and unsolicited asks again.
func (c *conn) takeLimits(l iscsi.Limits) {
	c.maxImmediate = c.login.params.MaxXmitDataSegmentLength
	if m := l.MaxControlData; m > 0 && uint32(m) < c.maxImmediate {
		c.maxImmediate = uint32(m)
	}
	c.maxTransfer, c.countsIn = int64(l.MaxTransfer), l.CountsIn
	c.turning = l.QuietUntilFirstCommand
}

// ackStatus takes the PDU's StatSN into the ExpStatSN that our next PDU
// carries. At error recovery level 0 numbers cannot be missing; a target that
// skips some is followed.
func (c *conn) ackStatus(b *iscsi.BHS) {
	if n := b.StatSN(); iscsi.SerialLessEq(c.expStatSN, n) {
		c.expStatSN = n + 1
	}
}
