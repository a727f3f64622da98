package iscsi

import (
	"slices"
	"sync/atomic"

	"go.uber.org/zap"

	"softiser/internal/iscsi"
	"softiser/target/internal/loglimit"
	"softiser/target/scsi"
)

// maxManaging is how many task management functions of a session may wait at once:
// for tasks to end, for commands on their way, for acknowledgements of others. They
// take no place in the command window, so nothing else bounds them.
const maxManaging = 64

// taskManager carries out the task management functions of a session's initiator.
type taskManager struct {
	sess  *session
	lines loglimit.Limit // of the log
	open  atomic.Int32   // functions that have not been answered
}

// take takes a Task Management Function Request (RFC 7143 §11.5), unless too many wait.
func (m *taskManager) take(c *conn, p *iscsi.PDU) {
	m.sess.counters.taskRequests.Add(1)
	tooMany := m.open.Add(1) > maxManaging
	if tooMany && p.BHS.Immediate() {
		m.open.Add(-1)
		c.out.reject(p, iscsi.RejectImmediate)
		return
	}
	bhs := p.BHS // a function may wait, its PDU does not
	p.Release()
	req := bhs.TaskRequest()
	if tooMany {
		c.out.taskResponse(req.ITT(), iscsi.TaskRejected)
		return
	}
	m.lines.Info(m.sess.log(), "task management", zap.Stringer("function", req.Function()), zap.String("lun", iscsi.FormatLUN(req.LUN())),
		zap.Uint32("cmdsn", req.CmdSN()))
	m.execute(c, req)
}

// execute begins a function. Its response is sent when every task that it affects has ended,
// their transfers included.
func (m *taskManager) execute(c *conn, req iscsi.TaskRequest) {
	s := m.sess
	f, itt, lun := req.Function(), req.ITT(), req.LUN()
	if f >= iscsi.QueryTask && f <= iscsi.QueryAsyncEvent && s.params.ProtocolLevel < 2 {
		// RFC 7144 §4: not before both sides have agreed on iSCSIProtocolLevel 2.
		c.out.taskResponse(itt, iscsi.TaskUnsupported)
		return
	}
	switch f {
	case iscsi.AbortTask:
		s.order.betweenCommands(c, func() { m.abortTask(c, req) })
	case iscsi.ClearACA:
		s.node.device.Manage(s.nexus, scsi.ClearACA, lun, nil, func(r scsi.TMFResponse) { c.out.taskResponse(itt, uint8(r)) })
	case iscsi.AbortTaskSet, iscsi.ClearTaskSet, iscsi.LogicalUnitReset,
		iscsi.TargetWarmReset, iscsi.TargetColdReset, iscsi.ITNexusReset:
		m.abortSetsInOrder(c, req)
	case iscsi.TaskReassign:
		m.reassign(c, req)
	case iscsi.QueryTask:
		c.out.taskResponse(itt, m.queryTask(req))
	case iscsi.QueryTaskSet:
		c.out.taskResponse(itt, m.queryTaskSet(lun))
	case iscsi.QueryAsyncEvent:
		m.queryAsyncEvent(c, itt, lun)
	default:
		c.out.taskResponse(itt, iscsi.TaskUnsupported)
	}
}

// abortSetsInOrder executes a function that aborts task sets when the commands that were sent before it
// are there: on one connection at level 0 they are.
func (m *taskManager) abortSetsInOrder(c *conn, req iscsi.TaskRequest) {
	s := m.sess
	abort := func() { m.abortSets(c, req) }
	if !req.Immediate() || !s.order.takesTurns && s.erl == 0 {
		abort()
		return
	}
	s.dropCollecting([]*session{s}, scopeOf(req.Function(), req.LUN())) // commands that wait for their data may hold up the order
	s.order.afterCommands(c, req.CmdSN(), abort)
}

// scope is the logical units that a function is about.
type scope struct {
	lun uint64 // as it stands in PDUs
	all bool   // every logical unit of the target; lun does not count
}

// scopeOf returns the scope of a function that names lun.
func scopeOf(f iscsi.TaskFunction, lun uint64) scope {
	return scope{lun, f == iscsi.TargetWarmReset || f == iscsi.TargetColdReset || f == iscsi.ITNexusReset}
}

// covers reports whether the function is about a task's logical unit.
func (s scope) covers(k *task) bool { return s.coversLUN(k.scsi.LUN) }

// coversLUN is covers for a command that is no task yet.
func (s scope) coversLUN(lun uint64) bool { return s.all || sameLUN(lun, s.lun) }

// abortSets executes a function that aborts task sets (RFC 7143 §4.2.3.3). Data that
// the initiator was asked for and still sends is dropped, not waited for: its transfer
// tags are not mistaken for later ones, and initiators that abort fast (Linux, by
// default) do not send it (ADR 69).
func (m *taskManager) abortSets(c *conn, req iscsi.TaskRequest) {
	s := m.sess
	f, itt, lun := req.Function(), req.ITT(), req.LUN()
	about := scopeOf(f, lun)
	others := m.sharers(f, about)
	m.dropHeld(req.CmdSN(), about)
	dropped := s.dropCollecting(append([]*session{s}, others...), about)
	if f == iscsi.ClearTaskSet { // a reset is told to all
		s.node.device.TellCleared(lun, func(n *scsi.Nexus) bool { return n != s.nexus && slices.Contains(dropped, n) })
	}
	var r scsi.TMFResponse
	over := newFence(func() {
		m.afterAcks(c, others, func() {
			c.out.taskResponse(itt, uint8(r))
			if f == iscsi.TargetColdReset {
				s.srv.coldReset(s.node)
			}
		})
	})
	s.mu.Lock()
	s.cmds.tags.each(func(k *task) {
		switch {
		case !about.covers(k):
		case k.has(flagEntering):
			k.abortEnteringLocked(over)
		case k.reply: // the device server has done with it, the initiator has not
			k.addFenceLocked(over)
		}
	})
	s.mu.Unlock()
	s.node.device.Manage(s.nexus, scsi.TMF(f), lun, nil, func(response scsi.TMFResponse) {
		r = response
		over.release()
	})
}

// abortTask is ABORT TASK (RFC 7143 §11.5.1, §11.5.5), at a time when no command is between
// the window and the device server: one that was there would be found in neither.
func (m *taskManager) abortTask(c *conn, req iscsi.TaskRequest) {
	s := m.sess
	answer := func(code uint8) { c.out.taskResponse(req.ITT(), code) }
	s.mu.Lock()
	k := s.cmds.tags.find(req.RefTask())
	if k == nil {
		skipped := m.skipLocked(req)
		s.mu.Unlock()
		if !skipped {
			answer(iscsi.TaskNotFound)
			return
		}
		answer(iscsi.TaskComplete)
		s.order.deliverHeld(c)
		return
	}
	ofUnit := sameLUN(k.scsi.LUN, req.LUN())
	switch {
	case (k.state == taskCollecting || k.reply) && !ofUnit:
		s.mu.Unlock()
		answer(iscsi.TaskNotFound) // there is none of that tag with the unit
	case k.state == taskCollecting || k.reply: // the device server does not know it
		f := newFence(func() { answer(iscsi.TaskComplete) })
		calls := s.cmds.abortLocked([]*task{k}, f)
		s.mu.Unlock()
		calls.run()
		f.release()
		s.order.deliverHeld(c)
	case k.has(flagEntering) && ofUnit:
		f := newFence(func() { answer(iscsi.TaskComplete) })
		k.abortEnteringLocked(f)
		s.mu.Unlock()
		f.release()
	default:
		k.pins++
		s.mu.Unlock()
		s.node.device.Manage(s.nexus, scsi.AbortTask, req.LUN(), &k.scsi, func(r scsi.TMFResponse) { answer(uint8(r)) })
		k.unpin()
	}
}

// skipLocked has the command that a function refers to count as received where it has not arrived: it
// is dropped should it still come (RFC 7143 §11.5.1). It reports false when there is no such command to come. The
// caller holds sess.mu.
func (m *taskManager) skipLocked(req iscsi.TaskRequest) bool {
	seq := &m.sess.order.seq
	sn := req.RefCmdSN()
	if !seq.win.Accepts(sn) || !iscsi.SerialLess(sn, req.CmdSN()) || !seq.mayBe(sn, req.RefTask(), req.LUN()) {
		return false
	}
	seq.skipOver(sn)
	return true
}

// dropHeld ends the commands of the session to the logical units of about that have a number before
// sn and wait for their turn: behind a WRITE to another unit, say, whose data is on its way.
func (m *taskManager) dropHeld(sn uint32, about scope) {
	s := m.sess
	s.mu.Lock()
	dropped := s.order.seq.skipHeld(sn, func(p *iscsi.PDU) bool {
		return p.BHS.Opcode() == iscsi.OpSCSICommand && about.coversLUN(p.BHS.LUN())
	})
	s.mu.Unlock()
	if dropped > 0 {
		s.counters.aborted.Add(uint64(dropped))
		s.order.deliverHeld(nil)
	}
}

// dropCollecting ends the WRITEs of sessions to the logical units of about whose
// unsolicited data has not all arrived: the device server does not know them yet. It
// returns whose they were, without those that are told by TASK ABORTED, because their unit
// has TAS and s, which ends them, is another one's.
func (s *session) dropCollecting(sessions []*session, about scope) (whose []*scsi.Nexus) {
	for _, x := range sessions {
		x.mu.Lock()
		var doomed, told []*task
		x.cmds.tags.each(func(k *task) {
			switch {
			case k.state != taskCollecting || !about.covers(k):
			case x != s && x.node.device.TellsAborted(k.scsi.LUN):
				told = append(told, k)
			default:
				doomed = append(doomed, k)
			}
		})
		calls := x.cmds.abortLocked(doomed, nil)
		for _, k := range told {
			k.pins++
			calls.ended = append(calls.ended, k)
			k.tellAbortedLocked()
		}
		waits := x.order.seq.n > 0
		x.mu.Unlock()
		for _, k := range told {
			k.Via().Push()
		}
		calls.run()
		if waits {
			// What waited for one of them goes on, if need be from here: its own
			// receive goroutine may have nothing more to do.
			x.order.deliverHeld(nil)
		}
		if len(doomed) > 0 {
			whose = append(whose, x.nexus)
		}
	}
	return whose
}

// queryTask is QUERY TASK (RFC 7144 §4.2): is the task in the task set?
func (m *taskManager) queryTask(req iscsi.TaskRequest) uint8 {
	s := m.sess
	s.mu.Lock()
	defer s.mu.Unlock()
	if k := s.cmds.tags.find(req.RefTask()); k != nil && sameLUN(k.scsi.LUN, req.LUN()) {
		return iscsi.TaskFunctionSucceeded
	}
	return iscsi.TaskComplete
}

// queryTaskSet is QUERY TASK SET: does the task set hold tasks of this nexus?
func (m *taskManager) queryTaskSet(lun uint64) uint8 {
	s := m.sess
	number, ok := iscsi.DecodeLUN(lun)
	if !ok {
		return iscsi.TaskNoLUN
	}
	if _, err := s.node.lun(uint16(number)); err != nil {
		return iscsi.TaskNoLUN
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	found := false
	s.cmds.tags.each(func(k *task) { found = found || sameLUN(k.scsi.LUN, lun) })
	if found {
		return iscsi.TaskFunctionSucceeded
	}
	return iscsi.TaskComplete
}

// queryAsyncEvent is QUERY ASYNCHRONOUS EVENT: does a unit attention wait for this nexus?
func (m *taskManager) queryAsyncEvent(c *conn, itt uint32, lun uint64) {
	switch e, pending, known := m.sess.node.device.QueryAsyncEvent(m.sess.nexus, lun); {
	case !known:
		c.out.taskResponse(itt, iscsi.TaskNoLUN)
	case pending:
		c.out.taskResponseInfo(itt, iscsi.TaskFunctionSucceeded, e.Information())
	default:
		c.out.taskResponse(itt, iscsi.TaskComplete)
	}
}

// coldReset ends every session of a target (RFC 7143 §11.5.1: TARGET COLD
// RESET also terminates all connections).
func (s *Frontend) coldReset(n *node) {
	for _, x := range s.sessionList(n) {
		x.dismiss(errColdReset)
	}
}
