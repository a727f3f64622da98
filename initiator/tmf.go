package initiator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"softiser/internal/iscsi"
)

// Aborting a command:
//
//	ABORT TASK --complete, or no such task--> the command ends with abortErr
//	    |
//	    | refused, or no answer within AbortTimeout
//	    v
//	LUN RESET (only for a command that timed out) --complete--> all commands of the LUN end
//	    |                                                        or are sent again
//	    | refused, or no answer within ResetTimeout
//	    v
//	connection ends; recovery logs in again, which ends every task at the target
//
// A caller that merely stopped waiting does not reset a LUN that others use.

// taskManagement aborts commands. The session's mutex guards it.
type taskManagement struct {
	s           *Session
	outstanding int // requests not answered
}

// maxTMFs is how many task management requests are outstanding at once: a
// target must take one more immediate command than the ones it works on (RFC
// 7143 §4.2.2.1), and most take two.
const maxTMFs = 2

// abort asks the target to abort command t, which then ends with err. The
// caller holds s.mu and kicks the connection.
func (tm *taskManagement) abort(c *conn, t *task, err error) {
	s := tm.s
	if t.state != taskSent || !t.setState(taskAborting) {
		return
	}
	t.abortErr, t.asked = err, false
	s.stats.Aborts++
	tm.nextAbort(c)
}

// nextAbort asks for the aborts that still wait for their turn.
func (tm *taskManagement) nextAbort(c *conn) {
	s := tm.s
	for i := range s.tasks.slots {
		if tm.outstanding >= maxTMFs {
			return
		}
		if t := &s.tasks.slots[i]; t.state == taskAborting && !t.asked {
			t.asked = true
			tm.sendTMF(c, iscsi.AbortTask, t)
		}
	}
}

// sendTMF sends a task management request about t or its LUN. Without a free
// slot the connection is past help.
func (tm *taskManagement) sendTMF(c *conn, f iscsi.TaskFunction, t *task) {
	s := tm.s
	m := s.tasks.control(kindTMF)
	if m == nil {
		c.doom(errors.New("no slot is left for task management"))
		return
	}
	q := s.pdu.BHS.NewTaskRequest(f)
	q.SetLUN(t.lun)
	q.SetITT(m.itt())
	wait := s.cfg.ResetTimeout
	if f == iscsi.AbortTask {
		q.SetRefTask(t.itt())
		q.SetRefCmdSN(t.cmdSN)
		wait = s.cfg.AbortTimeout
	}
	m.function, m.ref, m.refITT, m.lun = f, t.index, t.itt(), t.lun
	tm.begin(m, wait)
	c.queueImmediate()
}

// begin counts a task management request that is about to be sent among those outstanding.
func (tm *taskManagement) begin(m *task, wait time.Duration) {
	s := tm.s
	m.deadline, m.asked, m.cmdSN = s.clock.elapsed()+int64(wait), true, s.win.CmdSN
	tm.outstanding++
	if m.function == iscsi.LogicalUnitReset {
		s.units.resetting(m.lun, 1)
	}
}

// over ends that: it has been answered, or is not waited for any longer.
func (tm *taskManagement) over(m *task) {
	if !m.asked {
		return
	}
	m.asked = false
	tm.outstanding--
	if m.function == iscsi.LogicalUnitReset {
		tm.s.units.resetting(m.lun, -1)
	}
}

// response acts on the answer to a task management request, or on its
// refusal. The caller holds s.mu.
func (tm *taskManagement) response(c *conn, m *task, response uint8) {
	s := tm.s
	f, lun, sn := m.function, m.lun, m.cmdSN
	t := s.tasks.find(m.refITT)
	tm.over(m)
	s.tasks.put(m)
	defer tm.nextAbort(c)
	ok := response == iscsi.TaskComplete || f == iscsi.AbortTask && response == iscsi.TaskNotFound
	switch {
	case ok && f == iscsi.AbortTask:
		if t != nil && t.state == taskAborting {
			c.dm.ReleaseTask(&t.bufs)
			if !errors.Is(t.abortErr, context.Canceled) { // who has asked for that need not be told
				s.event(Event{Kind: EventAborted, Detail: fmt.Sprintf("%v of LUN %s", t.opcode(), iscsi.FormatLUN(lun)), Err: t.abortErr})
			}
			s.endTask(t, t.abortErr)
		}
	case ok:
		tm.lunReset(c, lun, sn)
	default:
		tm.escalate(c, f, t, fmt.Errorf("the target answered %v with response %d", f, response))
	}
}

// escalate takes the next step when a task management request did not help.
func (tm *taskManagement) escalate(c *conn, f iscsi.TaskFunction, t *task, why error) {
	s := tm.s
	if t == nil || t.state != taskAborting {
		return // it has ended by itself
	}
	if f == iscsi.AbortTask && t.abortErr == ErrTimeout {
		s.stats.Resets++
		tm.sendTMF(c, iscsi.LogicalUnitReset, t)
		return
	}
	c.doom(fmt.Errorf("a command could not be aborted: %w", why))
}

// lunReset ends the commands that the target has dropped with the LUN: those
// that were to be aborted, and those that must not be repeated; the others are
// sent again. Those from the CmdSN before on were sent behind the request, and are not
// affected (RFC 7143 §4.2.3.2): to send them again would have them carried out twice.
func (tm *taskManagement) lunReset(c *conn, lun uint64, before uint32) {
	s := tm.s
	s.event(Event{Kind: EventLUNReset, Detail: "LUN " + iscsi.FormatLUN(lun)})
	for i := range s.tasks.slots {
		t := &s.tasks.slots[i]
		if t.kind != kindCommand || t.lun != lun || t.state != taskSent && t.state != taskAborting || !iscsi.SerialLess(t.cmdSN, before) {
			continue
		}
		c.dm.ReleaseTask(&t.bufs)
		switch {
		case t.state == taskAborting:
			s.endTask(t, t.abortErr)
		case t.req.idempotent():
			s.wait.pushResend(t)
		default:
			s.stats.OutcomeUnknown++
			s.endTask(t, ErrOutcomeUnknown)
		}
	}
}

// ResetLUN resets a logical unit: every initiator's commands there are aborted.
func (s *Session) ResetLUN(ctx context.Context, lun uint64) error { return s.tm.resetLUN(ctx, lun) }

// resetLUN asks for the reset and waits for the answer.
func (tm *taskManagement) resetLUN(ctx context.Context, lun uint64) error {
	s := tm.s
	wire := iscsi.EncodeLUN(int(lun))
	done := make(chan error, 1)
	s.mu.Lock()
	c := s.conn
	m := s.tasks.control(kindTMF)
	if c == nil || m == nil || s.state != StateActive {
		if m != nil {
			s.tasks.put(m)
		}
		s.mu.Unlock()
		return fmt.Errorf("initiator: %s: no connection to reset LUN %d on", s.cfg.URL(), lun)
	}
	q := s.pdu.BHS.NewTaskRequest(iscsi.LogicalUnitReset)
	q.SetLUN(wire)
	q.SetITT(m.itt())
	m.function, m.lun, m.refITT = iscsi.LogicalUnitReset, wire, iscsi.ReservedTag
	tm.begin(m, s.cfg.ResetTimeout)
	m.answer = func(p *iscsi.PDU, err error) {
		if err == nil && p.BHS.TaskResponse().Response() != iscsi.TaskComplete {
			err = fmt.Errorf("initiator: LUN RESET was answered with response %d", p.BHS.TaskResponse().Response())
		}
		done <- err
	}
	s.stats.Resets++
	c.queueImmediate()
	s.unlock()
	c.kick()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// abandon ends r early: commands that were not sent are dropped, those at the
// target are aborted.
func (s *Session) abandon(r *request, err error) {
	s.mu.Lock()
	if r.state == reqIdle { // it has ended: Done is being called
		s.mu.Unlock()
		return
	}
	s.stop(r, err)
	c := s.conn
	for i := range s.tasks.slots {
		t := &s.tasks.slots[i]
		if t.kind != kindCommand || t.req != r {
			continue
		}
		switch t.state {
		case taskSent:
			s.tm.abort(c, t, err)
		case taskDelayed:
			s.wait.delayed--
			s.endTask(t, err)
		case taskResend:
			s.wait.dropResend(t)
			if t.replays > 0 {
				s.unknown(r)
			}
			s.endTask(t, err)
		}
	}
	s.endLate(r)
	if r.parts == 0 && r.state == reqRunning {
		s.finish(r, err)
	}
	s.unlock()
	if c != nil {
		c.kick()
	}
}
