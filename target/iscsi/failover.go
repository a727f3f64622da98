package iscsi

import (
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"

	"softiser/internal/iscsi"
)

// cleanupState is where a connection is between its end and that of its tasks, at
// error recovery level 2 (RFC 7143 §7.1.4.3, §8.2):
//
//	            connection lost                logout for recovery, of its CID;
//	(conn) ──────────────────────▶ cleanupWait ─ or a login with that CID ──▶ recoverable
//	   └──────── logout for recovery while it was there ──────────────────────▶ │
//	                                    │ time-out                              │ time-out
//	                                    └──────────▶ tasks are aborted ◀────────┘
//
// Only in recoverable may its tasks be reassigned. The time-out is Time2Wait and
// Time2Retain together, and begins anew with the logout.
type cleanupState uint8

const (
	cleanupWait cleanupState = iota
	recoverable
)

// nextCleanup is the drawing as a table; the end of a lost connection is no state.
var nextCleanup = moves[cleanupState]{
	cleanupWait: {recoverable},
	recoverable: {},
}

func (s cleanupState) String() string { return [...]string{"cleanup wait", "recoverable"}[s] }

// lostConn is a connection that has ended and whose tasks live on. Those that run
// go on as far as they can without a connection: data and status of what has been
// answered stay with its datamover (iscsi.Recovery), data that could not be given
// to it stays with the task (putState, getState). Guarded by session.mu.
type lostConn struct {
	c     *conn
	state cleanupState
	timer *time.Timer
}

// setState is the only place where a lost connection changes state. The caller
// holds sess.mu.
func (l *lostConn) setState(to cleanupState) {
	if !nextCleanup.legal(l.state, to) {
		l.c.sess.impossible("lost connection", l.state, to)
		return
	}
	l.state = to
}

// byLostCID finds a connection that was lost, the latest one. The caller holds
// s.mu.
func (s *session) byLostCID(cid uint16) *lostConn {
	for _, l := range slices.Backward(s.lost) {
		if l.c.cid == cid {
			return l
		}
	}
	return nil
}

// retain is how long tasks without a connection are kept. The longer Time2Wait wins
// the negotiation, so an initiator could have an hour; what the target itself would
// wait, or keep tasks for, bounds it.
func (s *session) retain() time.Duration {
	own := s.settings()
	wait := min(s.params.DefaultTime2Wait, max(own.DefaultTime2Wait, own.DefaultTime2Retain))
	return time.Duration(wait+min(s.params.DefaultTime2Retain, own.DefaultTime2Retain)) * time.Second
}

// loseLocked keeps the tasks of a connection that has ended. It returns the one whose
// tasks must end for that, if there are too many: no more of a session are kept than
// it may have connections. The caller holds s.mu and has taken c out of s.conns.
func (s *session) loseLocked(c *conn) (oldest *conn) {
	l := &lostConn{c: c}
	if c.recovering {
		l.setState(recoverable)
	}
	l.timer = time.AfterFunc(s.retain(), func() { s.giveUp(l) })
	s.lost = append(s.lost, l)
	if len(s.lost) <= int(s.params.MaxConnections) {
		return nil
	}
	oldest = s.lost[0].c
	s.dropLocked(s.lost[0])
	return oldest
}

// logOutLocked ends the wait for the logout of a lost connection. Its tasks get the
// time to be reassigned once. The caller holds s.mu.
func (s *session) logOutLocked(l *lostConn) {
	if l.state == recoverable {
		return
	}
	l.setState(recoverable)
	l.timer.Reset(s.retain())
}

// dropLocked forgets a lost connection, whose tasks end otherwise. The caller
// holds s.mu.
func (s *session) dropLocked(l *lostConn) {
	l.timer.Stop()
	l.c.discardKept()
	s.lost = slices.DeleteFunc(s.lost, func(x *lostConn) bool { return x == l })
}

// discardKept gives up what the datamover of c keeps for recovery.
func (c *conn) discardKept() {
	if r := c.dm.Recovery(); r != nil {
		r.Discard()
	}
}

// giveUp ends the tasks that nobody has asked for in time, and the session with them
// if it has no connection any more.
func (s *session) giveUp(l *lostConn) {
	s.mu.Lock()
	if s.state != sessionActive || !slices.Contains(s.lost, l) {
		s.mu.Unlock()
		return
	}
	s.dropLocked(l)
	last := len(s.conns) == 0 && len(s.lost) == 0
	s.mu.Unlock()
	if last {
		s.shut(fmt.Errorf("no connection has replaced the lost ones within %v (Time2Wait and Time2Retain)", s.retain()))
		return
	}
	s.endTasks(l.c)
}

// reassign is TASK REASSIGN (RFC 7143 §7.2.2): the task continues on c. The
// response goes out before anything else of the task does.
func (s *session) reassign(c *conn, req iscsi.TaskRequest) {
	itt, ref, exp := req.ITT(), req.RefTask(), req.ExpDataSN()
	if s.erl < 2 {
		c.taskResponse(itt, iscsi.TaskNoReassign)
		return
	}
	if !req.Immediate() {
		c.taskResponse(itt, iscsi.TaskRejected) // §11.5.1: it must be immediate
		return
	}
	s.mu.Lock()
	k := s.tags.find(ref)
	from, code := s.allegianceLocked(k, ref)
	c.queueTaskResponse(itt, code, 0)
	if code != iscsi.TaskComplete {
		s.mu.Unlock()
		return
	}
	s.log().Info("task reassigned", zap.Uint32("itt", ref), zap.Uint16("from_cid", from.cid), zap.Uint16("to_cid", c.cid))
	var (
		answer  iscsi.PDU
		running *iscsi.Ref
	)
	if k != nil {
		running = &k.ref
	}
	answered, lost := c.dm.Recovery().Adopt(from.dm.Recovery(), ref, exp, running, &answer)
	if answered {
		c.answerAgain(&answer, lost)
		s.mu.Unlock()
		return
	}
	k.via.Store(c)
	if lost {
		k.flags |= flagSNACK
	}
	if k.state == taskCollecting {
		stall := s.collectedLocked(k, burstRuns)
		s.mu.Unlock()
		s.endBurst(c, k, burstRuns, stall) // what has not come is asked for
		return
	}
	k.resumeLocked()
	s.mu.Unlock()
}

// allegianceLocked finds the connection that a task was allegiant to, or says why
// it cannot be reassigned. k is the task if it has not been answered. The caller
// holds s.mu.
func (s *session) allegianceLocked(k *task, itt uint32) (from *conn, code uint8) {
	holds := func(c *conn) bool {
		if k != nil {
			return k.conn() == c
		}
		r := c.dm.Recovery()
		return r != nil && r.Holds(itt)
	}
	for _, l := range s.lost {
		switch {
		case !holds(l.c):
		case l.state != recoverable:
			return nil, iscsi.TaskStillAllegiant
		case k != nil && k.state != taskCollecting && k.state != taskRunning:
			return nil, iscsi.TaskNotFound // it is being aborted
		default:
			return l.c, iscsi.TaskComplete
		}
	}
	if slices.ContainsFunc(s.conns, holds) {
		return nil, iscsi.TaskStillAllegiant
	}
	return nil, iscsi.TaskNotFound
}

// answerAgain sends the response of a task that had been answered on another
// connection; when its data is lost the answer is that.
func (c *conn) answerAgain(p *iscsi.PDU, lost bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r := p.BHS.SCSIResponse(); lost && r.Status() == 0 {
		c.scratch = appendCheck(c.scratch[:0], &r)
		p.Data = c.scratch
	}
	c.sendLocked(p, takeStatSN)
}

// resumeLocked continues the data transfers of a task on its new connection. The
// caller holds sess.mu.
func (k *task) resumeLocked() {
	if in := &k.in; in.parked {
		in.parked = false
		in.fail(k.put())
		if k.reply && !in.unsent() {
			k.reply = false
			k.respond()
		}
	}
	if out := &k.out; out.parked {
		out.parked = false
		out.since = k.sess.srv.now()
		_ = k.get() // a failure parks it again
	}
}

// parkPut keeps n bytes of the running DataIn that could not be given to the
// datamover until the task has a connection again. It reports false below error
// recovery level 2. The caller holds sess.mu.
func (k *task) parkPut(n int) bool {
	if k.sess.erl < 2 {
		return false
	}
	in := &k.in
	in.pos -= n
	in.off -= uint32(n)
	in.parked = true
	return true
}
