package initiator

import (
	"errors"
	"fmt"

	"softiser/internal/iscsi"
)

// ControlNotify implements iscsi.Upper: it receives every PDU but Data-In and R2T. PDUs that
// have arrived together are handled under one lock of the session, and Done callbacks run
// only after all of them.
func (c *conn) ControlNotify(p *iscsi.PDU) {
	for p != nil && (!c.login.over || c.s == nil) {
		next := p.Unlink()
		if !c.login.over {
			c.login.notify(c, p)
		} else {
			c.text.notify(c, p)
		}
		p = next
	}
	if p == nil {
		return
	}
	s := c.s
	c.notifying.Add(1)
	s.mu.Lock()
	for p != nil {
		next := p.Unlink()
		if c.works() {
			c.receive(p)
		}
		p.Release()
		p = next
	}
	s.pump()
	done, later := s.takeLocked()
	s.mu.Unlock()
	runLater(done, later)
	c.notifying.Add(-1)
}

// DataCompletionNotify implements iscsi.Upper; only targets have Transfers.
func (c *conn) DataCompletionNotify(*iscsi.Transfer) {}

// Sequence implements iscsi.Upper; only datamovers of targets ask for it.
func (c *conn) Sequence() iscsi.Sequence { return iscsi.Sequence{} }

// ConnectionTerminateNotify implements iscsi.Upper. It is the last up-call of the datamover.
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

// receive handles one PDU in full feature phase. The caller holds s.mu.
func (c *conn) receive(p *iscsi.PDU) {
	s := c.s
	b := &p.BHS
	if p.Bad != nil {
		// At error recovery level 0 a damaged PDU cannot be requested again (RFC 7143 §7.8).
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

// reject handles a Reject (RFC 7143 §11.17): the target did not accept a PDU of ours.
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
	if reason == iscsi.RejectDataDigest {
		// The command has not been carried out. At error recovery level 0 it cannot be sent again,
		// as only some targets count its CmdSN as received (RFC 7143 §7.8): give up the connection.
		c.doom(err)
		return
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
