package iscsi

import (
	"time"

	"softiser/internal/iscsi"
	"softiser/internal/spc"
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

// collectLocked begins to wait for the unsolicited data of k, whose command is p, and
// releases p; or it reports that there is no memory for the data. The caller holds
// sess.mu.
func (k *task) collectLocked(p *iscsi.PDU) bool {
	s, u := k.session(), &k.unsol
	u.total = min(k.scsi.OutLen, s.params.FirstBurstLength)
	buf := s.srv.bursts.get(int(u.total))
	if buf == nil {
		return false
	}
	u.dataSN, u.hole, u.moved = 0, false, false
	if u.burst++; s.erl > 0 {
		c, burst := k.conn(), u.burst
		u.late = time.AfterFunc(s.srv.cfg.Timeouts.Sequence, func() { k.lateBurst(c, burst) })
	}
	u.buf = append(buf, p.Data...)
	u.have = uint32(len(p.Data))
	if !s.params.DataPDUInOrder {
		u.seen = u.seen[:0]
		u.seen.Add(0, u.have)
	}
	k.conn().counters.bytesCopied.Add(uint64(len(p.Data)))
	k.setStateLocked(taskCollecting)
	if k.scsi.Attr != scsi.AttrSimple && !k.has(flagImmediate) {
		// An ORDERED task must not be passed by the commands behind it, and the
		// device server does not know of it yet.
		k.flags |= flagStall
	}
	s.order.seq.bursts.add(k.has(flagStall))
	p.Release()
	return true
}

// dataOut takes an unsolicited Data-Out PDU (RFC 7143 §11.7). Solicited ones
// never get here.
func (d *delivery) dataOut(c *conn, p *iscsi.PDU) {
	s := d.sess
	s.mu.Lock()
	held := d.seq.holdData(c, p)
	s.mu.Unlock()
	if !held {
		s.cmds.takeDataOut(c, p)
	}
}

// burstNext is what a Data-Out means for the unsolicited burst that it belongs to.
type burstNext uint8

const (
	burstGoesOn burstNext = iota
	burstStray            // its command was rejected or aborted meanwhile
	burstBreaks           // it breaks the protocol: the connection ends
	burstRuns             // it is over, and the command is carried out
	burstBusy             // it is over: there is no memory for it
	burstShort            // it is over: less has come than was announced
	burstLost             // it is over: a part of it was damaged on the way
	burstEnded            // it is over: another initiator has ended its command
)

// takeDataOut is dataOut for a command that has been delivered.
func (m *commands) takeDataOut(c *conn, p *iscsi.PDU) {
	s := m.sess
	s.mu.Lock()
	k := m.tags.find(p.BHS.ITT())
	next, why := burstStray, ""
	if k != nil && k.state == taskCollecting && p.BHS.DataOut().TTT() == iscsi.ReservedTag {
		had := k.unsol.have
		next, why = k.unsol.gather(p, &s.params)
		n := uint64(k.unsol.have - had)
		c.counters.bytesIn += n
		c.counters.bytesCopied.Add(n)
	}
	stall := next >= burstRuns && k.collectedLocked(next)
	s.mu.Unlock()
	switch next {
	case burstStray:
		s.counters.strayDataOut.Add(1)
	case burstBreaks:
		c.protocolError(p, why)
		return
	}
	p.Release()
	if next >= burstRuns { // otherwise the command may have ended meanwhile, and its slot is not ours
		k.endBurst(c, next, stall)
	}
}

// gather adds the data of p to the burst. why says what burstBreaks is about.
func (u *unsolicited) gather(p *iscsi.PDU, params *iscsi.Params) (next burstNext, why string) {
	if p.NoRoom {
		return burstBusy, ""
	}
	d := p.BHS.DataOut()
	mends := params.ErrorRecoveryLevel > 0
	have, off, n := u.have, d.Offset(), uint32(len(p.Data))
	switch {
	case mends && (u.hole || d.DataSN() != u.dataSN || off != have):
		u.hole = true
		if !p.BHS.Final() {
			return burstGoesOn, ""
		}
		return burstRuns, ""
	case d.DataSN() != u.dataSN || off != have && params.DataPDUInOrder:
		// Data has to come in order and without gaps; at error recovery level 0
		// a sequence error costs the session (RFC 7143 §7.9).
		return burstBreaks, "unsolicited Data-Out out of sequence"
	case off > u.total || n > u.total-off:
		return burstBreaks, "unsolicited data beyond FirstBurstLength"
	case !params.DataPDUInOrder && !u.seen.Add(off, n):
		return burstBreaks, "unsolicited data that has arrived before, or in too many pieces"
	}
	u.dataSN++
	u.moved = true
	u.have += n
	u.buf = u.buf[:max(uint32(len(u.buf)), off+n)] // it has room for total
	copy(u.buf[off:], p.Data)
	full := u.have == u.total
	switch final := p.BHS.Final(); {
	case !final && full:
		return burstBreaks, "unsolicited data is complete, but the F bit is clear"
	case !final:
		return burstGoesOn, ""
	case full || mends:
		return burstRuns, ""
	}
	return burstShort, ""
}

// collectedLocked ends the collection of unsolicited data. The caller then releases sess.mu
// and calls endBurst, with the result: whether the task holds up the CmdSN order.
func (k *task) collectedLocked(next burstNext) (stall bool) {
	u := &k.unsol
	k.setStateLocked(taskRunning)
	k.executed = next == burstRuns
	if k.executed && k.session().overtakes() {
		k.enterLocked()
	}
	k.scsi.Arrived, k.scsi.UnsolicitedLen = u.buf, uint32(len(u.buf))
	if u.late != nil {
		u.late.Stop()
		u.late = nil
	}
	return k.has(flagStall)
}

// endBurst executes the command whose burst is over, or answers it with an error, as next says,
// and then delivers what waited for it: no sooner, or that would pass it.
// stall is what collectedLocked has returned; here is as in deliverHeld.
func (k *task) endBurst(here *conn, next burstNext, stall bool) {
	s, via := k.session(), k.Via() // when it has been carried out, the slot may belong to someone else
	switch next {
	case burstRuns:
		s.node.device.Execute(&k.scsi)
		if s.overtakes() {
			k.entered()
		}
		if here == nil {
			via.Push()
		}
	case burstBusy:
		k.busy()
	case burstShort:
		k.fail(spc.KeyAborted, ascIncorrectData)
	case burstLost:
		k.fail(spc.KeyAborted, ascProtocolCRC)
	}
	s.mu.Lock()
	s.order.seq.bursts.remove(stall)
	waits := s.order.seq.n > 0
	s.mu.Unlock()
	if waits {
		s.order.deliverHeld(here)
	}
}

// lateBurst gives up waiting for the unsolicited data of a command that came on c (sequence
// reception time-out, RFC 7143 §7.9): the command runs, and asks for the rest by R2T. A
// burst that has made progress gets another time-out.
func (k *task) lateBurst(c *conn, burst uint64) {
	s := c.sess
	s.mu.Lock()
	u := &k.unsol
	over := c.hasLocked(k) && k.state == taskCollecting && u.burst == burst
	if over && u.moved {
		u.moved, over = false, false
		u.late.Reset(s.srv.cfg.Timeouts.Sequence)
	}
	stall := over && k.collectedLocked(burstRuns)
	s.mu.Unlock()
	if over {
		k.endBurst(nil, burstRuns, stall)
	}
}

// ascIncorrectData is INCORRECT AMOUNT OF DATA (RFC 7143 §11.4.7.2).
const ascIncorrectData spc.ASC = 0x0c0d

// ascProtocolCRC is PROTOCOL SERVICE CRC ERROR (RFC 7143 §11.4.7.2).
const ascProtocolCRC spc.ASC = 0x4705

// busy answers a command that the device server has not seen with BUSY, for want of memory.
// Unsolicited data that still arrives for it is dropped.
func (k *task) busy() {
	t := &k.scsi
	t.Status, t.SenseLen = spc.StatusBusy, 0
	t.Sent, t.Wanted, t.Silent = 0, 0, false
	k.session().counters.noMemory.Add(1)
	k.Respond(t)
}

// tellAbortedLocked answers a command that is still collecting its unsolicited data with TASK
// ABORTED, because another initiator has aborted it (TAS, SPC-4 §7.5.8). Data that still arrives for
// it is dropped. The caller holds sess.mu.
func (k *task) tellAbortedLocked() {
	k.session().order.seq.bursts.remove(k.collectedLocked(burstEnded))
	t := &k.scsi
	t.Status, t.SenseLen = spc.StatusTaskAborted, 0
	t.Sent, t.Wanted, t.Silent = 0, 0, false
	k.respondLocked()
}

// fail answers a command that the device server has not seen with CHECK
// CONDITION.
func (k *task) fail(key spc.Key, asc spc.ASC) {
	t := &k.scsi
	check(t, key, asc)
	t.Sent, t.Wanted, t.Silent = 0, t.OutLen, false
	k.Respond(t)
}
