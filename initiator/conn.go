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

// conn is one connection of a session and the upper end of its datamover. In
// full feature phase everything but the fields above s belongs to s.mu.
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
	maxImmediate uint32 // longest data segment of a command, bytes
	maxTransfer  int64  // longest data of one command, bytes; 0: no limit
	countsIn     bool   // the transport tells how much of a READ has arrived
	turning      bool   // these limits will change; see takeLimits
	heard        uint64 // PDUs received
	seen         uint64 // of these: when the clock was looked at last
	quiet        int64  // s.clock.now since nothing was heard
	pinged       bool   // a NOP-Out of ours is not answered yet
	early        bool   // it was sent before NopInterval was over, so NopTimeout does not run yet
	proved       bool   // a command was answered: the session makes progress
	waitTold     bool   // a Logout Response has said how long to wait before the next login,
	wait         time.Duration
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

// illegal takes a transition that its table does not have: a mistake of ours, which ends
// the connection, so that recovery begins anew. The caller holds s.mu.
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

// queueImmediate queues the session's scratch PDU, which has the header of an immediate request
// without data: that counts for nothing in the window (RFC 7143 §4.2.2.1). The caller holds s.mu.
func (c *conn) queueImmediate() {
	p := &c.s.pdu
	p.BHS.SetCmdSN(c.s.win.CmdSN)
	p.BHS.SetExpStatSN(c.expStatSN)
	p.AHS, p.Data, p.Bufs = nil, nil, nil
	c.queue(p)
}

// kick transmits what is queued, unless the datamover is delivering answers:
// it will do so itself when it has delivered the batch. The order matters:
// what was queued before notifying was seen set is transmitted by that push.
func (c *conn) kick() {
	if c.notifying.Load() == 0 {
		c.dm.Push()
	}
}

// unsolicited returns how much of a WRITE of n bytes, whose command has ahs bytes of
// additional header segments, goes with the command and how much unasked for in all. Where
// the target fetches data directly into its volume (RFC 7145) only writes that fit into the
// command whole are sent along: a part that travels in the command would have to be copied
// there. Additional header segments take their room there too, as Linux's target has no other.
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

// takeLimits takes what the transport carries. A stream that is turning into
// an iSER connection (RFC 7145 §5.1) says what it will carry only afterwards;
// until then it asks for quiet.
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
