package iscsi

import "softiser/internal/iscsi"

// takeLocked finds a slot for the command p of connection c and fills in what does not
// depend on its kind. The caller holds s.mu.
func (s *session) takeLocked(c *conn, p *iscsi.PDU) (*task, iscsi.RejectReason) {
	cmd := p.BHS.SCSICommand()
	if s.tags.find(cmd.ITT()) != nil {
		return nil, iscsi.RejectTaskInProgress
	}
	immediate := p.BHS.Immediate()
	if s.state != sessionActive || immediate && s.seq.win.used >= s.seq.win.slots {
		return nil, iscsi.RejectImmediate
	}
	k := c.free
	if k != nil {
		c.free = k.next
		k.next = nil
	} else {
		k = s.newTask(c)
	}
	s.seq.win.used++
	k.itt, k.cmdSN, k.ref = cmd.ITT(), cmd.CmdSN(), p.Ref
	k.flags = 0
	if immediate {
		k.flags |= flagImmediate
	} else {
		s.seq.win.active++
	}
	if cmd.Read() {
		k.flags |= flagRead
	}
	if cmd.Write() {
		k.flags |= flagWrite
	}
	k.started = s.srv.now()
	if s.erl == 2 {
		k.in.fail(errTaskAborted) // what an aborted task had left parked
		k.in.parked = false
	}
	for _, x := range [...]*iscsi.Transfer{&k.in.x, &k.out.x} {
		x.ITT, x.LUN, x.Ref = k.itt, cmd.LUN(), &k.ref
	}
	s.tags.insert(k)
	return k, 0
}

// newTask makes a slot of connection c.
func (s *session) newTask(c *conn) *task {
	k := &task{sess: s}
	k.via.Store(c)
	k.scsi.Port = k
	k.scsi.Nexus = s.nexus
	k.in.x.User, k.out.x.User = k, k
	return k
}
