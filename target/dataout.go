package target

import (
	"softiser/internal/iscsi"
	spc "softiser/internal/scsi"
	"softiser/target/scsi"
)

// unsolicited is the collection of Data-Out PDUs that follow a WRITE without
// being asked for (InitialR2T=No). They are gathered behind the immediate data,
// so that the device server sees one piece of arrived data, whatever the cut;
// the PDUs give their receive buffers back at once.
type unsolicited struct {
	buf    []byte // from Server.bursts; nil: none is being collected
	total  uint32 // bytes that must arrive: min(FirstBurstLength, EDTL) (RFC 7143 §4.2.5.2)
	dataSN uint32 // next
}

// collect begins to wait for the unsolicited data of k, whose command is p. The
// caller holds s.mu.
func (s *session) collect(k *task, p *iscsi.PDU) {
	u := &k.unsol
	u.total = min(k.scsi.OutLen, s.params.FirstBurstLength)
	u.dataSN = 0
	u.buf = append(s.srv.bursts.get(int(u.total)), p.Data...)
	k.conn().counters.bytesCopied.Add(uint64(len(p.Data)))
	k.setState(taskCollecting)
	if k.scsi.Attr != scsi.AttrSimple && !k.has(flagImmediate) {
		// An ORDERED task must not be passed by the commands behind it, and the
		// device server does not know of it yet.
		k.flags |= flagStall
		s.stalled++
	}
	p.Release()
}

// dataOut takes an unsolicited Data-Out PDU (RFC 7143 §11.7). Solicited ones
// never get here.
func (s *session) dataOut(c *conn, p *iscsi.PDU) {
	d := p.BHS.DataOut()
	s.mu.Lock()
	k := s.tags.find(d.ITT())
	if k == nil || k.state != taskCollecting || d.TTT() != iscsi.ReservedTag {
		// Data of a command that was rejected or aborted meanwhile.
		s.mu.Unlock()
		s.counters.strayDataOut.Add(1)
		p.Release()
		return
	}
	u := &k.unsol
	have := uint32(len(u.buf))
	switch {
	case d.DataSN() != u.dataSN || d.Offset() != have:
		// In order and without gaps, or at error recovery level 0 the session
		// is lost (RFC 7143 §7.4).
		s.mu.Unlock()
		c.protocolError(p, "unsolicited Data-Out out of sequence")
		return
	case uint32(len(p.Data)) > u.total-have:
		s.mu.Unlock()
		c.protocolError(p, "unsolicited data beyond FirstBurstLength")
		return
	}
	u.dataSN++
	u.buf = append(u.buf, p.Data...)
	c.counters.bytesIn.Add(uint64(len(p.Data)))
	c.counters.bytesCopied.Add(uint64(len(p.Data)))
	full := uint32(len(u.buf)) == u.total
	if !p.BHS.Final() {
		s.mu.Unlock()
		if full {
			c.protocolError(p, "unsolicited data is complete, but the F bit is clear")
			return
		}
		p.Release()
		return
	}
	k.setState(taskRunning)
	k.scsi.Arrived, k.scsi.UnsolicitedLen = u.buf, uint32(len(u.buf))
	stall := k.has(flagStall)
	if stall {
		s.stalled--
	}
	k.executed = full
	s.mu.Unlock()
	p.Release()
	if full {
		s.node.device.Execute(&k.scsi)
	} else {
		k.fail(spc.KeyAborted, ascIncorrectData)
	}
	if stall {
		s.deliverHeld(c)
	}
}

// ascIncorrectData is INCORRECT AMOUNT OF DATA (RFC 7143 §11.4.7.2).
const ascIncorrectData spc.ASC = 0x0c0d

// fail answers a command that the device server has not seen with CHECK
// CONDITION.
func (k *task) fail(key spc.Key, asc spc.ASC) {
	t := &k.scsi
	sense := spc.Sense{Key: key, ASC: asc}
	t.Status = spc.StatusCheckCondition
	t.SenseLen = len(sense.AppendFixed(t.Sense[:0]))
	t.Sent, t.Wanted, t.Silent = 0, t.OutLen, false
	k.Respond(t)
}

// dropBurst gives the collected data of k back. The caller holds s.mu.
func (s *session) dropBurst(k *task) {
	if k.unsol.buf != nil {
		s.srv.bursts.put(k.unsol.buf)
		k.unsol.buf = nil
	}
}
