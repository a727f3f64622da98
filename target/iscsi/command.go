package iscsi

import "softiser/internal/iscsi"

// commands are the SCSI commands of a session, from their PDUs to a slot each, and back
// to a free one.
type commands struct {
	sess *session
	tags tagTable // guarded by sess.mu: the slots in use
}

// take takes a SCSI Command (RFC 7143 §11.3) that is next in order, or
// immediate.
func (m *commands) take(c *conn, p *iscsi.PDU) {
	beside := p.BHS.Immediate() && m.sess.overtakes()
	if k := m.admit(c, p, beside); k != nil {
		m.execute(k, beside)
	}
}

// execute gives the device server a task that admit has returned.
func (m *commands) execute(k *task, beside bool) {
	m.sess.node.device.Execute(&k.scsi)
	if beside {
		k.entered()
	}
}

// admit gives the command p of connection c a slot, and takes over p. It returns the task if
// that can be executed now; nil if the command was refused, or first has to collect its
// unsolicited data. beside says that task management functions may run while the command is
// on its way to the device server, see session.overtakes.
func (m *commands) admit(c *conn, p *iscsi.PDU, beside bool) *task {
	s := m.sess
	var ahs iscsi.CommandAHS
	if len(p.AHS) > 0 {
		var err error
		if ahs, err = iscsi.ParseCommandAHS(p.AHS); err != nil {
			c.out.reject(p, iscsi.RejectInvalidField)
			return nil
		}
	}
	if reason := m.check(p); reason != 0 {
		c.out.reject(p, reason)
		return nil
	}

	s.mu.Lock()
	k, reason := m.slotLocked(c, p)
	if k == nil {
		s.mu.Unlock()
		c.out.reject(p, reason)
		return nil
	}
	k.setCommandLocked(p, ahs.CDB)
	if len(p.Data) > 0 {
		c.counters.bytesIn += uint64(len(p.Data))
	}
	if p.NoRoom || k.has(flagWrite) && !p.BHS.Final() && !k.collectLocked(p) {
		k.setStateLocked(taskRunning)
		s.mu.Unlock()
		p.Release()
		k.busy()
		return nil
	}
	if k.state == taskCollecting {
		s.mu.Unlock()
		return nil
	}
	if len(p.Data) > 0 {
		k.pdu = p // Arrived borrows its buffer
	}
	k.setStateLocked(taskRunning)
	k.executed = true
	if beside {
		k.enterLocked()
	}
	borrowed := k.pdu != nil
	s.mu.Unlock()
	if !borrowed {
		p.Release()
	}
	return k
}

// setCommandLocked fills in the scsi.Task of the command p. rest is the part of the CDB that
// came in an additional header segment (RFC 7143 §11.2.2.3). The caller holds sess.mu.
func (k *task) setCommandLocked(p *iscsi.PDU, rest []byte) {
	cmd, t := p.BHS.SCSICommand(), &k.scsi
	t.CDB = append(k.cdb[:0], cmd.CDB()...)
	if len(rest) > 0 {
		t.CDB = append(append(make([]byte, 0, 16+len(rest)), t.CDB...), rest...)
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
}

// check finds commands that contradict themselves or the negotiated keys (RFC 7143 §11.3).
// It returns the reason of the Reject, 0 for none.
func (m *commands) check(p *iscsi.PDU) iscsi.RejectReason {
	s := m.sess
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
		return iscsi.RejectProtocol // F=0 announces Data-Out PDUs, and unsolicited ones are not allowed here
	case !p.BHS.Final() && uint32(len(p.Data)) >= min(edtl, s.params.FirstBurstLength):
		return iscsi.RejectProtocol // F=0 announces Data-Out PDUs, and the first burst is full
	}
	return 0
}
