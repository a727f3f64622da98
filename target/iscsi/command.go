package iscsi

import (
	"softiser/internal/iscsi"
	"softiser/target/scsi"
)

// command takes a SCSI Command (RFC 7143 §11.3) that is next in order, or
// immediate.
func (s *session) command(c *conn, p *iscsi.PDU) {
	cmd := p.BHS.SCSICommand()
	var ahs iscsi.CommandAHS
	if len(p.AHS) > 0 {
		var err error
		if ahs, err = iscsi.ParseCommandAHS(p.AHS); err != nil {
			c.reject(p, iscsi.RejectInvalidField)
			return
		}
	}
	if reason := s.checkCommand(p); reason != 0 {
		c.reject(p, reason)
		return
	}

	s.mu.Lock()
	k, reason := s.take(c, p)
	if k == nil {
		s.mu.Unlock()
		c.reject(p, reason)
		return
	}
	t := &k.scsi
	t.CDB = append(k.cdb[:0], cmd.CDB()...)
	if len(ahs.CDB) > 0 {
		t.CDB = append(append(make([]byte, 0, 16+len(ahs.CDB)), t.CDB...), ahs.CDB...)
	}
	t.LUN = p.BHS.LUN()
	t.Attr = taskAttr(cmd.Attr())
	t.InLen, t.OutLen = 0, 0
	switch {
	case k.has(flagRead):
		t.InLen = cmd.EDTL()
	case k.has(flagWrite):
		t.OutLen = cmd.EDTL()
	}
	t.Arrived = p.Data
	t.UnsolicitedLen = uint32(len(p.Data))
	if len(p.Data) > 0 {
		c.counters.bytesIn.Add(uint64(len(p.Data)))
	}
	if p.NoRoom || k.has(flagWrite) && !p.BHS.Final() && !s.collect(k, p) {
		k.setState(taskRunning)
		s.mu.Unlock()
		p.Release()
		k.busy()
		return
	}
	if k.state == taskCollecting {
		s.mu.Unlock()
		return
	}
	if len(p.Data) > 0 {
		k.pdu = p // Arrived borrows its buffer
	}
	k.setState(taskRunning)
	k.executed = true
	borrowed := k.pdu != nil
	s.mu.Unlock()
	if !borrowed {
		p.Release()
	}
	s.node.device.Execute(t)
}

// checkCommand refuses commands that contradict themselves or the negotiation.
// It returns the reject reason, 0 for none.
func (s *session) checkCommand(p *iscsi.PDU) iscsi.RejectReason {
	cmd := p.BHS.SCSICommand()
	edtl := cmd.EDTL()
	switch {
	case cmd.ITT() == iscsi.ReservedTag:
		return iscsi.RejectInvalidField
	case cmd.Read() && cmd.Write():
		return iscsi.RejectInvalidField // bidirectional commands: none is implemented
	case edtl != 0 && !cmd.Read() && !cmd.Write():
		return iscsi.RejectInvalidField
	case len(p.Data) > 0 && (!cmd.Write() || !s.params.ImmediateData):
		return iscsi.RejectProtocol
	case uint64(len(p.Data)) > uint64(min(edtl, s.params.FirstBurstLength)):
		return iscsi.RejectProtocol
	case !p.BHS.Final() && (!cmd.Write() || s.params.InitialR2T):
		return iscsi.RejectProtocol // announces Data-Out PDUs that nobody asked for
	case !p.BHS.Final() && uint32(len(p.Data)) >= min(edtl, s.params.FirstBurstLength):
		return iscsi.RejectProtocol // announces more, but the first burst is full
	}
	return 0
}

// take finds a slot for the command p of connection c and fills in what does not
// depend on its kind. The caller holds s.mu.
func (s *session) take(c *conn, p *iscsi.PDU) (*task, iscsi.RejectReason) {
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

// putBack returns a slot to the free list of its connection. The caller holds
// s.mu.
func (s *session) putBack(k *task) {
	c := k.conn()
	k.setState(taskFree)
	k.fences = k.fences[:0]
	k.next = c.free
	c.free = k
	s.seq.win.used--
	s.openWindow()
}

// taskAttr translates the ATTR field (RFC 7143 §11.3.1); untagged commands are
// simple ones.
func taskAttr(a uint8) scsi.TaskAttr {
	switch a {
	case 2:
		return scsi.AttrOrdered
	case 3:
		return scsi.AttrHeadOfQueue
	case 4:
		return scsi.AttrACA
	}
	return scsi.AttrSimple
}
