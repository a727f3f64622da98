package iscsitcp

import (
	"fmt"

	"softiser/internal/iscsi"
)

// snack serves a SNACK Request (RFC 7143 §11.16). What cannot be served goes up to
// be rejected.
func (c *Conn) snack(in *inPDU) error {
	q := in.pdu.BHS.SNACK()
	c.mu.Lock()
	var reason iscsi.RejectReason
	switch {
	case c.st != stateFull:
	case c.tx.again >= againPDUs:
		// It does not read what it asked for before. It will ask again.
	default:
		reason = c.answerSNACK(q)
	}
	c.mu.Unlock()
	if reason == 0 {
		in.pdu.Release()
		return nil
	}
	in.pdu.Bad = &iscsi.ProtocolError{Reason: reason, Msg: fmt.Sprintf("SNACK of type %d from %d for %d PDUs", q.Type(), q.BegRun(), q.RunLength())}
	return c.notify(in)
}

// answerSNACK returns why q is rejected, 0 when it was served. The caller holds
// c.mu.
func (c *Conn) answerSNACK(q iscsi.SNACK) iscsi.RejectReason {
	k := c.keep
	beg, run := q.BegRun(), q.RunLength()
	itt, tag := q.ITT(), q.TTT()
	t := k.tasks[itt]
	switch q.Type() {
	case iscsi.SNACKData:
		switch {
		case itt == iscsi.ReservedTag || tag != iscsi.ReservedTag:
			return iscsi.RejectInvalidField
		case t == nil:
			return c.r2tAgain(itt, beg, run)
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
		c.dataAgain(t, int(beg-t.first), n)
	case iscsi.SNACKStatus:
		if itt != iscsi.ReservedTag || tag != iscsi.ReservedTag {
			return iscsi.RejectInvalidField
		}
		if len(k.status) == 0 {
			return iscsi.RejectProtocol
		}
		first := k.status[0].sn
		if beg == 0 && run == 0 {
			beg = first
		}
		n, ok := inRun(beg, run, first, len(k.status))
		if !ok {
			return iscsi.RejectProtocol
		}
		for i := range n {
			if k.status[int(beg-first)+i].lost {
				return iscsi.RejectSNACK
			}
		}
		for i := range n {
			c.statusAgain(&k.status[int(beg-first)+i])
		}
	case iscsi.SNACKDataACK:
		t = k.tags[tag]
		if itt != iscsi.ReservedTag || run != 0 || t == nil || q.LUN() != t.lun || beg-t.first > uint32(len(t.pdus)) {
			return iscsi.RejectDataACK
		}
		k.ackedData(t, beg)
	case iscsi.SNACKRData:
		switch {
		case t == nil:
			return iscsi.RejectProtocol
		case beg != 0 || run != 0 || tag == 0 || tag == iscsi.ReservedTag:
			return iscsi.RejectInvalidField
		case t.lost:
			return iscsi.RejectSNACK
		}
		c.recut(t, tag)
	default:
		return iscsi.RejectInvalidField
	}
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

// dataInLocked queues the kept Data-In number i of t.
func (c *Conn) dataInLocked(t *keptTask, i int) *outPDU {
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
	o.data = view{segs: o.one[:], n: len(p.data)}
	c.tx.push(o)
	return o
}

func (c *Conn) dataAgain(t *keptTask, from, n int) {
	for i := range n {
		c.againLocked(c.dataInLocked(t, from+i))
	}
}

// statusAgain queues a numbered PDU once more: the same but for ExpCmdSN, MaxCmdSN
// and ExpDataSN.
func (c *Conn) statusAgain(s *keptStatus) {
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
	c.againLocked(o)
}

func (c *Conn) againLocked(o *outPDU) {
	o.again = true
	o.cost = pduCost + o.data.n // the queue may be all that holds the data, once it is acknowledged
	c.tx.unsent.Add(o.cost)
	c.tx.again++
	c.stats.again.Add(1)
}

// r2tAgain sends outstanding R2Ts of a task again; those whose data has arrived
// have been acknowledged by it. One that was given up because nothing came for it
// is repeated too: the initiator needs its number, and what it sends for its tag is
// dropped.
func (c *Conn) r2tAgain(itt, beg, run uint32) iscsi.RejectReason {
	found := false
	again := func(x *iscsi.Transfer, r *r2t) {
		if iscsi.SerialLess(r.sn, beg) || run > 0 && r.sn-beg >= run {
			return
		}
		found = true
		c.againLocked(c.sendR2TLocked(x, r))
	}
	for g := c.gets.first; g != nil; g = g.next {
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
func (c *Conn) recut(t *keptTask, tag uint32) {
	t.snackTag = tag
	x := c.tx.withdraw(t.itt)
	c.cutAnew(t)
	if x != nil { // its data waited in the queue
		if o := c.tx.tail; o != nil && o.bhs().Opcode() == iscsi.OpDataIn && o.xfer == nil {
			o.xfer, o.last = x, true
		} else {
			c.tx.done(x)
		}
	}
	for i := range c.keep.status {
		if s := &c.keep.status[i]; s.task == t {
			c.statusAgain(s)
		}
	}
}

// cutAnew cuts what has not been acknowledged to the present
// MaxRecvDataSegmentLength of the initiator, and sends it.
func (c *Conn) cutAnew(t *keptTask) {
	old := t.pdus
	t.pdus = nil
	c.keep.pdus -= len(old)
	for _, p := range old {
		for len(p.data) > 0 {
			n := min(len(p.data), int(c.params.MaxXmitDataSegmentLength))
			last := n == len(p.data)
			t.pdus = append(t.pdus, keptPDU{off: p.off, data: p.data[:n:n], final: p.final && last, ack: p.ack && last})
			p.off += uint32(n)
			p.data = p.data[n:]
		}
	}
	c.keep.pdus += len(t.pdus)
	c.dataAgain(t, 0, len(t.pdus))
}

// withdraw takes the Data-Ins of a task out of the queue that have not begun, and
// returns the transfer that ends with the last of them, if it does.
func (t *txState) withdraw(itt uint32) (ends *iscsi.Transfer) {
	var prev *outPDU
	for p := t.head; p != nil; {
		next := p.next
		if p.taken || p.bhs().Opcode() != iscsi.OpDataIn || p.bhs().ITT() != itt {
			prev, p = p, next
			continue
		}
		if p.last {
			ends = p.xfer
		}
		t.unlink(prev, p)
		p = next
	}
	return ends
}
