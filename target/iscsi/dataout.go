package iscsi

import (
	"time"

	"softiser/internal/iscsi"
	spc "softiser/internal/scsi"
	"softiser/target/scsi"
)

// unsolicited is the collection of Data-Out PDUs that follow a WRITE without
// being asked for (InitialR2T=No). They are gathered behind the immediate data,
// so that the device server sees one piece of arrived data, whatever the cut;
// the PDUs give their receive buffers back at once.
type unsolicited struct {
	buf    []byte      // from Frontend.bursts; nil: none is being collected
	total  uint32      // bytes that must arrive: min(FirstBurstLength, EDTL) (RFC 7143 §4.2.5.2)
	dataSN uint32      // next
	have   uint32      // bytes that have arrived
	seen   iscsi.Spans // which, with DataPDUInOrder=No; else the first ones
	// At error recovery level 1 and above, what is missing costs nothing but time:
	// the command runs with what came before it, and asks for the rest by R2T.
	hole  bool        // something is missing; what follows is dropped
	moved bool        // something has come since late last looked
	late  *time.Timer // until the burst has ended
	burst uint64      // counts bursts of the slot, for late
}

// collect begins to wait for the unsolicited data of k, whose command is p, and
// releases p; or it reports that there is no memory for the data. The caller holds
// s.mu.
func (s *session) collect(k *task, p *iscsi.PDU) bool {
	u := &k.unsol
	u.total = min(k.scsi.OutLen, s.params.FirstBurstLength)
	buf := s.srv.bursts.get(int(u.total))
	if buf == nil {
		return false
	}
	u.dataSN, u.hole = 0, false
	if u.burst++; s.erl > 0 {
		burst := u.burst
		u.late = time.AfterFunc(s.srv.cfg.Timeouts.Sequence, func() { s.lateBurst(k, burst) })
	}
	u.buf = append(buf, p.Data...)
	u.have = uint32(len(p.Data))
	if !s.params.DataPDUInOrder {
		u.seen = u.seen[:0]
		u.seen.Add(0, u.have)
	}
	k.conn().counters.bytesCopied.Add(uint64(len(p.Data)))
	k.setState(taskCollecting)
	if k.scsi.Attr != scsi.AttrSimple && !k.has(flagImmediate) {
		// An ORDERED task must not be passed by the commands behind it, and the
		// device server does not know of it yet.
		k.flags |= flagStall
		s.stalled++
	}
	p.Release()
	return true
}

// dataOut takes an unsolicited Data-Out PDU (RFC 7143 §11.7). Solicited ones
// never get here.
func (s *session) dataOut(c *conn, p *iscsi.PDU) {
	s.mu.Lock()
	if s.holdData(c, p) {
		s.mu.Unlock()
		return
	}
	s.takeDataOut(c, p)
}

// takeDataOut is dataOut for a command that has been delivered. The caller holds
// s.mu; takeDataOut unlocks.
func (s *session) takeDataOut(c *conn, p *iscsi.PDU) {
	d := p.BHS.DataOut()
	k := s.tags.find(d.ITT())
	if k == nil || k.state != taskCollecting || d.TTT() != iscsi.ReservedTag {
		// Data of a command that was rejected or aborted meanwhile.
		s.mu.Unlock()
		s.counters.strayDataOut.Add(1)
		p.Release()
		return
	}
	if p.NoRoom {
		stall := s.collected(k)
		s.mu.Unlock()
		p.Release()
		k.busy()
		if stall {
			s.deliverHeld(c)
		}
		return
	}
	u := &k.unsol
	have, off, n := u.have, d.Offset(), uint32(len(p.Data))
	if s.erl > 0 && (u.hole || d.DataSN() != u.dataSN || off != have) {
		u.hole = true
		burst := u.burst
		s.mu.Unlock()
		final := p.BHS.Final()
		p.Release()
		if final {
			s.runShort(c, k, burst)
		}
		return
	}
	switch {
	case d.DataSN() != u.dataSN || off != have && s.params.DataPDUInOrder:
		// In order and without gaps, or at error recovery level 0 the session
		// is lost (RFC 7143 §7.4).
		s.mu.Unlock()
		c.protocolError(p, "unsolicited Data-Out out of sequence")
		return
	case off > u.total || n > u.total-off:
		s.mu.Unlock()
		c.protocolError(p, "unsolicited data beyond FirstBurstLength")
		return
	case !s.params.DataPDUInOrder && !u.seen.Add(off, n):
		s.mu.Unlock()
		c.protocolError(p, "unsolicited data that has arrived before, or in too many pieces")
		return
	}
	u.dataSN++
	u.moved = true
	u.have += n
	u.buf = u.buf[:max(uint32(len(u.buf)), off+n)] // it has room for total
	copy(u.buf[off:], p.Data)
	c.counters.bytesIn.Add(uint64(len(p.Data)))
	c.counters.bytesCopied.Add(uint64(len(p.Data)))
	full := u.have == u.total
	if !p.BHS.Final() {
		s.mu.Unlock()
		if full {
			c.protocolError(p, "unsolicited data is complete, but the F bit is clear")
			return
		}
		p.Release()
		return
	}
	p.Release()
	if full || s.erl > 0 {
		s.runCollected(c, k)
		return
	}
	stall := s.collected(k)
	s.mu.Unlock()
	k.fail(spc.KeyAborted, ascIncorrectData)
	if stall {
		s.deliverHeld(c)
	}
}

// collected ends the collection of unsolicited data; it reports whether the CmdSN
// order has waited for it. The caller holds s.mu.
func (s *session) collected(k *task) (stall bool) {
	u := &k.unsol
	k.setState(taskRunning)
	k.scsi.Arrived, k.scsi.UnsolicitedLen = u.buf, uint32(len(u.buf))
	if u.late != nil {
		u.late.Stop()
		u.late = nil
	}
	if stall = k.has(flagStall); stall {
		s.stalled--
	}
	return stall
}

// runCollected executes a WRITE with the unsolicited data that is there. here is as
// in deliverHeld. The caller holds s.mu; runCollected unlocks.
func (s *session) runCollected(here *conn, k *task) {
	stall := s.collected(k)
	k.executed = true
	s.mu.Unlock()
	s.node.device.Execute(&k.scsi)
	if here == nil {
		k.Push()
	}
	if stall {
		s.deliverHeld(here)
	}
}

// runShort is runCollected for a burst that may have ended meanwhile.
func (s *session) runShort(here *conn, k *task, burst uint64) {
	s.mu.Lock()
	if k.state != taskCollecting || k.unsol.burst != burst {
		s.mu.Unlock()
		return
	}
	s.runCollected(here, k)
}

// lateBurst gives up waiting for unsolicited data (sequence reception time-out,
// RFC 7143 §7.5). A burst that still makes progress is given another time-out.
func (s *session) lateBurst(k *task, burst uint64) {
	s.mu.Lock()
	if u := &k.unsol; k.state == taskCollecting && u.burst == burst && u.moved {
		u.moved = false
		u.late.Reset(s.srv.cfg.Timeouts.Sequence)
		s.mu.Unlock()
		return
	}
	s.mu.Unlock()
	s.runShort(nil, k, burst)
}

// ascIncorrectData is INCORRECT AMOUNT OF DATA (RFC 7143 §11.4.7.2).
const ascIncorrectData spc.ASC = 0x0c0d

// busy answers a command that the device server has not seen with BUSY: there is no
// memory for it now. What comes of its unsolicited data is dropped.
func (k *task) busy() {
	t := &k.scsi
	t.Status, t.SenseLen = spc.StatusBusy, 0
	t.Sent, t.Wanted, t.Silent = 0, 0, false
	k.sess.counters.noMemory.Add(1)
	k.Respond(t)
}

// fail answers a command that the device server has not seen with CHECK
// CONDITION.
func (k *task) fail(key spc.Key, asc spc.ASC) {
	t := &k.scsi
	check(t, key, asc)
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
