package iscsi

import "softiser/internal/iscsi"

// slotLocked finds a slot for the command p of connection c and fills in what does not
// depend on its kind. The caller holds sess.mu.
func (m *commands) slotLocked(c *conn, p *iscsi.PDU) (*task, iscsi.RejectReason) {
	s := m.sess
	cmd := p.BHS.SCSICommand()
	if m.tags.find(cmd.ITT()) != nil {
		return nil, iscsi.RejectTaskInProgress
	}
	immediate := p.BHS.Immediate()
	if s.state != sessionActive || immediate && s.order.seq.win.used >= s.order.seq.win.slots {
		return nil, iscsi.RejectImmediate
	}
	k := c.free
	if k != nil {
		c.free = k.next
		k.next = nil
	} else {
		k = m.newTask(c)
	}
	s.order.seq.win.used++
	k.itt, k.cmdSN, k.ref = cmd.ITT(), cmd.CmdSN(), p.Ref
	k.flags = 0
	if immediate {
		k.flags |= flagImmediate
	} else {
		s.order.seq.win.active++
	}
	if cmd.Read() {
		k.flags |= flagRead
	}
	if cmd.Write() {
		k.flags |= flagWrite
	}
	k.started = s.srv.now()
	if s.erl == 2 {
		k.in.fail(errTaskAborted) // completes what an aborted task has left parked in this slot
		k.in.parked = false
	}
	for _, x := range [...]*iscsi.Transfer{&k.in.x, &k.out.x} {
		x.ITT, x.LUN, x.Ref = k.itt, cmd.LUN(), &k.ref
	}
	m.tags.insert(k)
	return k, 0
}

// newTask makes a slot of connection c.
func (m *commands) newTask(c *conn) *task {
	k := &task{sess: m.sess}
	k.via.Store(c)
	k.scsi.Port = k
	k.scsi.Nexus = m.sess.nexus
	k.in.x.User, k.out.x.User = k, k
	return k
}
