package initiator

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

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
var nextConn = after([][]connState{
	connLogin:   {connEntered, connDead},
	connEntered: {connFlowing, connDoomed, connDead},
	connFlowing: {connLeaving, connDoomed, connDead},
	connLeaving: {connDoomed, connDead},
	connDoomed:  {connDead},
	connDead:    {},
}...)

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
	quiet        int64  // s.watch.clock since nothing was heard
	pinged       bool   // a NOP-Out of ours is not answered yet
	early        bool   // it was sent before NopInterval was over, so NopTimeout does not run yet
	proved       bool   // a command was answered: the session makes progress
	waitTold     bool   // a Logout Response has said how long to wait before the next login,
	wait         time.Duration
}

// ControlNotify receives every PDU but Data-In and R2T.
func (c *conn) ControlNotify(p *iscsi.PDU) {
	if !c.login.over {
		c.login.notify(c, p)
		return
	}
	s := c.s
	if s == nil {
		c.text.notify(c, p)
		return
	}
	c.notifying.Add(1)
	s.mu.Lock()
	if c.works() {
		c.receive(p)
	}
	done, later := s.takeLocked()
	s.mu.Unlock()
	p.Release()
	runLater(done, later)
	c.notifying.Add(-1)
}

// DataCompletionNotify belongs to the target's role.
func (c *conn) DataCompletionNotify(*iscsi.Transfer) {}

// Sequence belongs to the target's role.
func (c *conn) Sequence() iscsi.Sequence { return iscsi.Sequence{} }

// ConnectionTerminateNotify is the last up-call of the datamover.
func (c *conn) ConnectionTerminateNotify(err error) {
	if err == nil {
		err = errors.New("the target closed the connection")
	}
	if c.login != nil {
		c.login.fail(err)
	}
	if c.s != nil {
		c.s.rec.ended(c, err)
	}
	close(c.gone)
}

// setState is the only place where the state changes; false says that nothing has, because
// the table does not have it. The caller holds s.mu, or is the login.
func (c *conn) setState(to connState) bool {
	if !nextConn.legal(c.state, to) {
		c.s.illegal("connection", c.state, to)
		return false
	}
	c.state = to
	return true
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

// receive handles one PDU in full feature phase. The caller holds s.mu.
func (c *conn) receive(p *iscsi.PDU) {
	s := c.s
	b := &p.BHS
	if p.Bad != nil {
		// At error recovery level 0 what was lost cannot be asked for again.
		c.violation("%v in a %v", p.Bad, b.Opcode())
		return
	}
	c.heard++
	s.win.Update(b.Sequence())
	switch b.Opcode() {
	case iscsi.OpSCSIResponse:
		c.ackStatus(b)
		c.scsiResponse(p)
	case iscsi.OpNopIn:
		c.nopIn(p)
	case iscsi.OpTaskResponse, iscsi.OpLogoutResp:
		c.ackStatus(b)
		c.controlResponse(p)
	case iscsi.OpAsync:
		c.ackStatus(b)
		c.async(p)
	case iscsi.OpReject:
		c.ackStatus(b)
		c.reject(p)
	default:
		c.violation("%v in full feature phase", b.Opcode())
	}
	s.pump()
}

// ackStatus takes the PDU's StatSN into the ExpStatSN that our next PDU
// carries. At error recovery level 0 numbers cannot be missing; a target that
// skips some is followed.
func (c *conn) ackStatus(b *iscsi.BHS) {
	if n := b.StatSN(); iscsi.SerialLessEq(c.expStatSN, n) {
		c.expStatSN = n + 1
	}
}

// controlResponse ends a task management or logout exchange.
func (c *conn) controlResponse(p *iscsi.PDU) {
	s := c.s
	want := kindTMF
	if p.BHS.Opcode() == iscsi.OpLogoutResp {
		want = kindLogout
	}
	t := s.tasks.find(p.BHS.ITT())
	if t == nil || t.kind != want {
		c.violation("%v for the unknown task tag %#08x", p.BHS.Opcode(), p.BHS.ITT())
		return
	}
	f := t.answer
	t.answer = nil
	if t.kind == kindTMF {
		s.tm.response(c, t, p.BHS.TaskResponse().Response())
	} else {
		s.tasks.put(t)
	}
	if f != nil {
		answer := iscsi.PDU{BHS: p.BHS}
		s.out.run(func() { f(&answer, nil) })
	}
}

// reject handles a PDU of ours that the target did not accept.
func (c *conn) reject(p *iscsi.PDU) {
	s := c.s
	reason := p.BHS.Reject().Reason()
	err := fmt.Errorf("initiator: the target rejected a PDU: %v", reason)
	if len(p.Data) < iscsi.BHSLen {
		c.violation("a Reject with %d bytes of header", len(p.Data))
		return
	}
	bhs := iscsi.BHS(p.Data[:iscsi.BHSLen])
	t := s.tasks.find(bhs.ITT())
	s.event(Event{Kind: EventAsync, Detail: fmt.Sprintf("%v was rejected", bhs.Opcode()), Err: err})
	if t == nil || bhs.Opcode() == iscsi.OpDataOut {
		return // after a rejected Data-Out the command still gets its response
	}
	switch t.kind {
	case kindCommand:
		if t.state == taskSent || t.state == taskAborting {
			c.dm.ReleaseTask(&t.bufs)
			s.endTask(t, err)
		}
	case kindTMF:
		s.tm.response(c, t, iscsi.TaskRejected)
	case kindPing:
		c.pinged = false // a rejected ping, too, shows that the target is there
		s.tasks.put(t)
	default:
		s.endTask(t, err)
	}
}
