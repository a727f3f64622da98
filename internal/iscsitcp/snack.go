package iscsitcp

import (
	"fmt"

	"softiser/internal/iscsi"
	"softiser/internal/segs"
)

// snack serves a SNACK Request (RFC 7143 §11.16). What cannot be served goes up to
// be rejected.
func (rec *recovery) snack(in *inPDU) error {
	c := rec.c
	q := in.pdu.BHS.SNACK()
	c.mu.Lock()
	var reason iscsi.RejectReason
	switch {
	case c.st != iscsi.ConnFull:
	case c.tx.again >= againPDUs:
		// The peer has not read what it asked for before: this request is dropped, it will ask again.
	default:
		reason = rec.serve(q)
	}
	c.mu.Unlock()
	if reason == 0 {
		in.pdu.Release()
		return nil
	}
	in.pdu.Bad = &iscsi.ProtocolError{Reason: reason, Msg: fmt.Sprintf("SNACK of type %d from %d for %d PDUs", q.Type(), q.BegRun(), q.RunLength())}
	return c.rx.notify(in)
}

// serve returns why q is rejected, 0 when it was served; so do those below, each for one type of
// SNACK. The caller holds c.mu.
func (rec *recovery) serve(q iscsi.SNACK) iscsi.RejectReason {
	switch q.Type() {
	case iscsi.SNACKData:
		return rec.snackData(q)
	case iscsi.SNACKStatus:
		return rec.snackStatus(q)
	case iscsi.SNACKDataACK:
		return rec.snackDataACK(q)
	case iscsi.SNACKRData:
		return rec.snackRData(q)
	}
	return iscsi.RejectInvalidField
}

// snackData sends Data-In PDUs or R2Ts again.
func (rec *recovery) snackData(q iscsi.SNACK) iscsi.RejectReason {
	beg, run := q.BegRun(), q.RunLength()
	itt := q.ITT()
	t := rec.tasks[itt]
	switch {
	case itt == iscsi.ReservedTag || q.TTT() != iscsi.ReservedTag:
		return iscsi.RejectInvalidField
	case t == nil:
		return rec.r2tAgain(itt, beg, run)
	}
	if beg == 0 && run == 0 {
		beg = t.first
	}
	n, ok := inRun(beg, run, t.first, len(t.pdus))
	switch {
	case !ok:
		return iscsi.RejectProtocol
	case t.lost:
		return iscsi.RejectSNACK
	}
	rec.dataAgain(t, int(beg-t.first), n)
	return 0
}

// snackStatus sends numbered responses again: all of the run, or none.
func (rec *recovery) snackStatus(q iscsi.SNACK) iscsi.RejectReason {
	beg, run := q.BegRun(), q.RunLength()
	if q.ITT() != iscsi.ReservedTag || q.TTT() != iscsi.ReservedTag {
		return iscsi.RejectInvalidField
	}
	if len(rec.status) == 0 {
		return iscsi.RejectProtocol
	}
	first := rec.status[0].sn
	if beg == 0 && run == 0 {
		beg = first
	}
	n, ok := inRun(beg, run, first, len(rec.status))
	if !ok {
		return iscsi.RejectProtocol
	}
	for i := range n {
		if rec.status[int(beg-first)+i].lost {
			return iscsi.RejectSNACK
		}
	}
	for i := range n {
		rec.statusAgain(&rec.status[int(beg-first)+i])
	}
	return 0
}

// snackDataACK forgets Data-In PDUs that the initiator has acknowledged.
func (rec *recovery) snackDataACK(q iscsi.SNACK) iscsi.RejectReason {
	beg, t := q.BegRun(), rec.tags[q.TTT()]
	if q.ITT() != iscsi.ReservedTag || q.RunLength() != 0 || t == nil || q.LUN() != t.lun || beg-t.first > uint32(len(t.pdus)) {
		return iscsi.RejectDataACK
	}
	rec.ackedData(t, beg)
	return 0
}

// snackRData sends what has not been acknowledged again, cut anew.
func (rec *recovery) snackRData(q iscsi.SNACK) iscsi.RejectReason {
	t, tag := rec.tasks[q.ITT()], q.TTT()
	switch {
	case t == nil:
		return iscsi.RejectProtocol
	case q.BegRun() != 0 || q.RunLength() != 0 || tag == 0 || tag == iscsi.ReservedTag:
		return iscsi.RejectInvalidField
	case t.lost:
		return iscsi.RejectSNACK
	}
	rec.recut(t, tag)
	return 0
}

// inRun says how many of the have PDUs numbered from first on a run asks for; ok
// is false when it asks for others too.
func inRun(beg, run, first uint32, have int) (n int, ok bool) {
	at := beg - first
	switch left := uint32(have) - at; {
	case at >= uint32(have) || run > left:
		return 0, false
	case run == 0:
		return int(left), true
	}
	return int(run), true
}

// dataIn queues the kept Data-In number i of t.
func (rec *recovery) dataIn(t *keptTask, i int) *outPDU {
	c := rec.c
	p := &t.pdus[i]
	seq := c.up.Sequence()
	var b iscsi.BHS
	d := b.NewDataIn()
	d.SetITT(t.itt)
	d.SetSequence(iscsi.Sequence{ExpCmdSN: seq.ExpCmdSN, MaxCmdSN: seq.MaxCmdSN})
	d.SetDataSN(t.first + uint32(i))
	d.SetOffset(p.off)
	d.SetFinal(p.final)
	if p.ack {
		d.SetAcknowledge(true)
		d.SetLUN(t.lun)
		d.SetTTT(t.tag)
	}
	o := c.tx.alloc(&b)
	o.digest, o.payload = true, true
	o.one[0] = p.data
	o.Data = segs.Of(o.one[:], 0, len(p.data))
	c.tx.push(o)
	return o
}

// dataAgain sends n kept Data-Ins of t again.
func (rec *recovery) dataAgain(t *keptTask, from, n int) {
	for i := range n {
		rec.again(rec.dataIn(t, from+i))
	}
}

// statusAgain queues a numbered PDU once more: the same but for ExpCmdSN, MaxCmdSN
// and ExpDataSN.
func (rec *recovery) statusAgain(s *keptStatus) {
	c := rec.c
	b := s.bhs
	seq := c.up.Sequence()
	b.SetSequence(iscsi.Sequence{StatSN: s.sn, ExpCmdSN: seq.ExpCmdSN, MaxCmdSN: seq.MaxCmdSN})
	s.finish(&b)
	o := c.tx.alloc(&b)
	o.digest = true
	if len(s.data) > 0 {
		o.setOwn(s.data)
	}
	c.tx.push(o)
	rec.again(o)
}

func (rec *recovery) again(o *outPDU) {
	c := rec.c
	o.again = true
	o.cost = pduCost + o.Data.Len() // counted here, as the kept copy may go first, when it is acknowledged
	c.tx.unsent.Add(o.cost)
	c.tx.again++
}

// r2tAgain sends outstanding R2Ts of a task again; those whose data has arrived
// have been acknowledged by it. One that was given up because nothing came for it
// is repeated too: the initiator needs its number, and what it sends for its tag is
// dropped.
func (rec *recovery) r2tAgain(itt, beg, run uint32) iscsi.RejectReason {
	c := rec.c
	found := false
	again := func(x *iscsi.Transfer, r *r2t) {
		if iscsi.SerialLess(r.sn, beg) || run > 0 && r.sn-beg >= run {
			return
		}
		found = true
		rec.again(c.sendR2TLocked(x, r))
	}
	for g := c.gets.running.First(); g != nil; g = g.node.Next() {
		if g.itt != itt {
			continue
		}
		for i := range g.stale {
			again(g.x, &g.stale[i])
		}
		for _, r := range c.gets.r2ts {
			if r.g == g {
				again(g.x, r)
			}
		}
	}
	if !found {
		return iscsi.RejectProtocol
	}
	return 0
}

// recut serves an R-Data SNACK (RFC 7143 §11.16.3): what was not acknowledged is cut
// to the initiator's present MaxRecvDataSegmentLength and sent again, and so is the
// response if it has been sent, with the SNACK Tag and its old StatSN.
func (rec *recovery) recut(t *keptTask, tag uint32) {
	c := rec.c
	t.snackTag = tag
	x := c.tx.withdraw(t.itt)
	rec.cutAnew(t)
	if x != nil { // its data waited in the queue
		if o := c.tx.Last(); o != nil && o.bhs().Opcode() == iscsi.OpDataIn && o.xfer == nil {
			o.xfer, o.last = x, true
		} else {
			c.tx.done(x)
		}
	}
	for i := range rec.status {
		if s := &rec.status[i]; s.task == t {
			rec.statusAgain(s)
		}
	}
}

// cutAnew cuts what has not been acknowledged to the present
// MaxRecvDataSegmentLength of the initiator, and sends it.
func (rec *recovery) cutAnew(t *keptTask) {
	c := rec.c
	old := t.pdus
	t.pdus = nil
	rec.pdus -= len(old)
	for _, p := range old {
		for len(p.data) > 0 {
			n := min(len(p.data), int(c.params.MaxXmitDataSegmentLength))
			last := n == len(p.data)
			t.pdus = append(t.pdus, keptPDU{off: p.off, data: p.data[:n:n], final: p.final && last, ack: p.ack && last})
			p.off += uint32(n)
			p.data = p.data[n:]
		}
	}
	rec.pdus += len(t.pdus)
	rec.dataAgain(t, 0, len(t.pdus))
}

// withdraw takes the Data-Ins of a task out of the queue that have not begun, and
// returns the transfer that ends with the last of them, if it does. One that ends
// before is over: what is kept is sent in its place.
func (t *transmitter) withdraw(itt uint32) (ends *iscsi.Transfer) {
	t.Remove(func(p *outPDU) bool {
		if p.Taken() || p.bhs().Opcode() != iscsi.OpDataIn || p.bhs().ITT() != itt {
			return false
		}
		if p.last {
			if ends != nil {
				t.done(ends)
			}
			ends = p.xfer
		}
		return true
	})
	return ends
}
