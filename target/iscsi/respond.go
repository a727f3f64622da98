package iscsi

import (
	"softiser/internal/iscsi"
	"softiser/internal/spc"
	"softiser/target/scsi"
)

// ascSNACKRejected is READ ERROR - FAILED RETRANSMISSION REQUEST (RFC 7143
// §11.4.7.2).
const ascSNACKRejected spc.ASC = 0x1113

// appendCheck makes r CHECK CONDITION because the command's data is lost, and
// appends its data segment to dst.
func appendCheck(dst []byte, r *iscsi.SCSIResponse) []byte {
	r.SetStatus(byte(spc.StatusCheckCondition))
	sense := spc.Sense{Key: spc.KeyAborted, ASC: ascSNACKRejected}
	return iscsi.AppendSense(dst, sense.AppendFixed(nil))
}

// check makes the status of t CHECK CONDITION.
func check(t *scsi.Task, key spc.Key, asc spc.ASC) {
	sense := spc.Sense{Key: key, ASC: asc}
	t.Status = spc.StatusCheckCondition
	t.SenseLen = len(sense.AppendFixed(t.Sense[:0]))
}

// respondLocked ends a command: its place in the window is free again, and unless it
// has been aborted its SCSI Response is queued. The caller holds sess.mu.
func (k *task) respondLocked() {
	s := k.session()
	silent := k.state == taskAborting || k.scsi.Silent
	k.setStateLocked(taskEnded)
	s.cmds.tags.remove(k)
	if !k.has(flagImmediate) {
		s.order.seq.win.active--
	}
	s.openWindowLocked()
	if k.pdu != nil {
		k.pdu.Release()
		k.pdu = nil
	}
	k.scsi.Arrived = nil
	if silent {
		s.counters.aborted.Add(1)
		if s.erl > 0 {
			k.conn().dm.Recovery().Forget(k.itt)
		}
		return
	}
	if k.has(flagSNACK) && k.scsi.Status == spc.StatusGood {
		check(&k.scsi, spc.KeyAborted, ascSNACKRejected)
	}
	s.cmds.countLocked(k)
	k.conn().out.scsiResponse(k)
}

// scsiResponse builds and queues the SCSI Response of k (RFC 7143 §11.4).
func (o *sender) scsiResponse(k *task) {
	t := &k.scsi
	o.mu.Lock()
	p := &o.pdu
	r := p.BHS.NewSCSIResponse()
	r.SetITT(k.itt)
	r.SetStatus(byte(t.Status))
	n, flag := residual(k)
	r.SetResidual(n, flag)
	p.Data = nil
	if t.SenseLen > 0 {
		sense := t.Sense[:t.SenseLen]
		// Two bytes of length come first. Linux initiators post buffers of 128
		// bytes of data over iSER, whatever was negotiated.
		if most := o.controlData() - 2; len(sense) > most {
			sense = sense[:max(most, 0)]
		}
		o.scratch = iscsi.AppendSense(o.scratch[:0], sense)
		p.Data = o.scratch
	}
	p.Ref = k.ref
	o.sendLocked(p, takeStatSN)
	p.Ref = iscsi.Ref{}
	o.mu.Unlock()
}

// residual compares what the initiator expected with what the command moved
// (RFC 7143 §11.4.5): underflow when there was less, overflow when the command
// wanted more than the initiator announced.
func residual(k *task) (n uint32, flag byte) {
	t := &k.scsi
	var expected, moved uint32
	switch {
	case k.has(flagRead):
		expected, moved = t.InLen, t.Sent
	case k.has(flagWrite):
		expected, moved = t.OutLen, min(t.Wanted, t.OutLen)
	}
	switch {
	case t.Wanted > expected:
		return t.Wanted - expected, iscsi.ResidualOverflow
	case moved < expected:
		return expected - moved, iscsi.ResidualUnderflow
	}
	return 0, 0
}

// answerAgain sends the response of a task that had been answered on another
// connection; when its data is lost the answer is that.
func (o *sender) answerAgain(p *iscsi.PDU, lost bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if r := p.BHS.SCSIResponse(); lost && r.Status() == 0 {
		o.scratch = appendCheck(o.scratch[:0], &r)
		p.Data = o.scratch
	}
	o.sendLocked(p, takeStatSN)
}
