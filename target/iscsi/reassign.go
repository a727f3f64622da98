package iscsi

import (
	"slices"

	"go.uber.org/zap"

	"softiser/internal/iscsi"
)

// reassign is TASK REASSIGN (RFC 7143 §7.2.2): the task continues on c. The
// response goes out before anything else of the task does.
func (m *taskManager) reassign(c *conn, req iscsi.TaskRequest) {
	s := m.sess
	itt, ref, exp := req.ITT(), req.RefTask(), req.ExpDataSN()
	if s.erl < 2 {
		c.out.taskResponse(itt, iscsi.TaskNoReassign)
		return
	}
	if !req.Immediate() {
		c.out.taskResponse(itt, iscsi.TaskRejected) // §11.5.1: it must be immediate
		return
	}
	s.mu.Lock()
	if c.abandoned { // its tasks have been ended with it; this one would never be
		s.mu.Unlock()
		c.out.taskResponse(itt, iscsi.TaskRejected)
		return
	}
	k := s.cmds.tags.find(ref)
	from, code := m.allegianceLocked(k, ref)
	c.out.queueTaskResponse(itt, code, 0)
	if code != iscsi.TaskComplete {
		s.mu.Unlock()
		return
	}
	s.srv.stats.reassigned.Add(1)
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
		c.out.answerAgain(&answer, lost)
		s.mu.Unlock()
		return
	}
	k.via.Store(c)
	if lost {
		k.flags |= flagSNACK
	}
	if k.state == taskCollecting {
		stall := k.collectedLocked(burstRuns)
		s.mu.Unlock()
		k.endBurst(c, burstRuns, stall) // asks for the data that has not come
		return
	}
	k.resumeLocked()
	s.mu.Unlock()
}

// allegianceLocked finds the connection that a task was allegiant to, or says why
// it cannot be reassigned. k is the task if it has not been answered. The caller
// holds s.mu.
func (m *taskManager) allegianceLocked(k *task, itt uint32) (from *conn, code uint8) {
	all := &m.sess.conns.members
	home := m.homeLocked(k, itt)
	if home == nil {
		return nil, iscsi.TaskNotFound
	}
	for _, l := range all.lost {
		switch {
		case l.c != home:
		case l.state != recoverable:
			return nil, iscsi.TaskStillAllegiant
		case k != nil && k.state != taskCollecting && k.state != taskRunning:
			return nil, iscsi.TaskNotFound // it is being aborted
		default:
			return home, iscsi.TaskComplete
		}
	}
	if slices.Contains(all.conns, home) {
		return nil, iscsi.TaskStillAllegiant
	}
	return nil, iscsi.TaskNotFound
}

// homeLocked finds the connection of a task; nil when none has it. Of those that hold an answer
// for its tag that is the one that gave the last: the others were of earlier tasks, and their
// acknowledgement was lost with the connection, or is still to come. The caller holds s.mu.
func (m *taskManager) homeLocked(k *task, itt uint32) (home *conn) {
	if k != nil {
		return k.conn()
	}
	last := uint64(0)
	look := func(c *conn) {
		if r := c.dm.Recovery(); r != nil {
			if when := r.Holds(itt); when > last {
				home, last = c, when
			}
		}
	}
	for _, l := range m.sess.conns.members.lost {
		look(l.c)
	}
	for _, c := range m.sess.conns.members.conns {
		look(c)
	}
	return home
}

// resumeLocked continues the data transfers of a task on its new connection. The
// caller holds sess.mu.
func (k *task) resumeLocked() {
	if in := &k.in; in.parked {
		in.parked = false
		in.fail(k.putLocked())
		if k.reply && !in.unsent() {
			k.reply = false
			k.respondLocked()
		}
	}
	if out := &k.out; out.parked {
		out.parked = false
		out.since = k.session().srv.now()
		_ = k.getLocked() // if it fails, the transfer is parked again
	}
}
