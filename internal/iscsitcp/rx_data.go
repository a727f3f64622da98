package iscsitcp

import (
	"fmt"

	"softiser/internal/iscsi"
	"softiser/internal/segs"
)

// dataIn finds the place for a Data-In's data. Data of a task that is gone is
// dropped.
func (r *receiver) dataIn() error {
	c := r.c
	d := r.bhs.DataIn()
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.tasks.find(d.ITT())
	if k == nil || c.st >= iscsi.ConnClosing {
		return nil
	}
	off, n := d.Offset(), uint32(r.Left())
	switch {
	case off > k.inLen || n > k.inLen-off:
		return protocolError("Data-In of %d bytes at offset %d for a buffer of %d bytes", n, off, k.inLen)
	case d.DataSN() != k.dataSN:
		return protocolError("Data-In has DataSN %d, expected %d", d.DataSN(), k.dataSN)
	case c.params.DataPDUInOrder && c.params.DataSequenceInOrder && off != k.placed:
		return protocolError("Data-In at offset %d, expected %d (DataPDUInOrder=Yes)", off, k.placed)
	case k.placed > k.inLen || n > k.inLen-k.placed:
		return protocolError("Data-Ins carry more than the buffer of %d bytes", k.inLen)
	}
	k.dataSN++
	k.placed += n
	r.owner = k
	if n > 0 && !k.fault {
		r.Aim(segs.Of(k.bufs.In, int(off), int(n)), k)
	}
	c.stats.payloadIn.Add(uint64(n))
	return nil
}

// dataInDone ends a Data-In; with S it becomes the task's SCSI Response.
func (r *receiver) dataInDone(good bool) error {
	if !good {
		return errDigestFatal
	}
	d := r.bhs.DataIn()
	if d.Acknowledge() {
		r.acknowledge(d)
	}
	if !d.HasStatus() {
		return nil
	}
	if !d.Final() {
		return protocolError("Data-In with status but without F")
	}
	in := newInPDU(0)
	b := &in.pdu.BHS
	s := b.NewSCSIResponse()
	s.SetITT(d.ITT())
	s.SetSequence(d.Sequence())
	s.SetStatus(d.Status())
	s.SetResidual(d.Residual(), d.ResidualFlags())
	s.SetExpDataSN(d.DataSN() + 1)
	return r.notify(in)
}

// acknowledge answers the A bit (RFC 7143 §11.7.2): all Data-Ins up to this one
// have arrived.
func (r *receiver) acknowledge(d iscsi.DataIn) {
	c := r.c
	var b iscsi.BHS
	s := b.NewSNACK(iscsi.SNACKDataACK)
	s.SetLUN(d.LUN())
	s.SetITT(iscsi.ReservedTag)
	s.SetTTT(d.TTT())
	s.SetBegRun(d.DataSN() + 1)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.st != iscsi.ConnFull {
		return
	}
	s.SetExpStatSN(c.expStatSN)
	o := c.tx.alloc(&b)
	o.digest, o.cost = true, pduCost
	c.tx.unsent.Add(o.cost)
	c.tx.push(o)
}

// r2tIn answers an R2T with a sequence of Data-Outs.
func (r *receiver) r2tIn() error {
	c := r.c
	q := r.bhs.R2T()
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.tasks.find(q.ITT())
	if k == nil || c.st != iscsi.ConnFull {
		return nil // the task was aborted meanwhile
	}
	off, n := q.Offset(), q.Desired()
	switch {
	case q.TTT() == iscsi.ReservedTag:
		return protocolError("R2T with the reserved tag")
	case n == 0 || n > c.params.MaxBurstLength:
		return protocolError("R2T for %d bytes; MaxBurstLength is %d", n, c.params.MaxBurstLength)
	case off > k.outLen || n > k.outLen-off:
		return protocolError("R2T for %d bytes at offset %d of a buffer of %d bytes", n, off, k.outLen)
	case q.R2TSN() != k.r2tSN:
		return protocolError("R2T has R2TSN %d, expected %d", q.R2TSN(), k.r2tSN)
	case k.queued > int(c.params.MaxOutstandingR2T)*int(c.params.MaxBurstLength/512+2):
		return protocolError("the target has sent more R2Ts than MaxOutstandingR2T allows")
	}
	k.r2tSN++
	c.dataOutLocked(k, q.TTT(), off, n)
	return nil
}

// dataOut finds the place for a solicited Data-Out's data.
func (r *receiver) dataOut() error {
	c := r.c
	d := r.bhs.DataOut()
	c.mu.Lock()
	defer c.mu.Unlock()
	q, stale := c.gets.lookup(d.TTT())
	if stale || c.st >= iscsi.ConnClosing {
		c.gets.move(beforeAll)
		return nil // of an aborted task, or too late
	}
	bad := func(format string, args ...any) error {
		r.in = newInPDU(0)
		r.in.pdu.BHS = r.bhs
		r.in.pdu.Bad = &iscsi.ProtocolError{Reason: iscsi.RejectInvalidField, Msg: fmt.Sprintf(format, args...)}
		return nil
	}
	if q == nil {
		return bad("Data-Out for the tag %#08x, which no R2T has named", d.TTT())
	}
	x := q.g.x
	off, n := d.Offset(), uint32(r.Left())
	at := off - x.Offset // relative to the transfer; checked below
	if c.rec != nil && d.ITT() == x.ITT && off >= x.Offset && c.rec.skip(q, d.DataSN(), at) {
		return nil // a PDU that came before
	}
	switch {
	case d.ITT() != x.ITT:
		return bad("Data-Out for the tag %#08x has another task's tag", d.TTT())
	case off < x.Offset || at < q.off || at-q.off > q.n || n > q.n-(at-q.off):
		return bad("Data-Out of %d bytes at offset %d; %d bytes at %d were asked for", n, off, q.n, x.Offset+q.off)
	case c.params.DataPDUInOrder && at != q.off+q.got:
		return bad("Data-Out at offset %d, expected %d", off, x.Offset+q.off+q.got)
	case d.DataSN() != q.dataSN:
		return bad("Data-Out has DataSN %d, expected %d", d.DataSN(), q.dataSN)
	case !c.params.DataPDUInOrder && !q.seen.Add(at, n):
		// Bytes that came twice would be counted for others that never came, whose memory would keep its old content.
		return bad("Data-Out of %d bytes at offset %d: part of it has arrived before, or there are too many gaps", n, off)
	}
	q.dataSN++
	r.owner, r.tag = q.g, q
	if n > 0 && !q.g.fault {
		r.Aim(segs.Of(x.Segs, int(at), int(n)), q.g)
	}
	return nil
}

// dataOutDone ends a solicited Data-Out.
func (r *receiver) dataOutDone(good bool) error {
	c := r.c
	c.mu.Lock()
	if r.owner == nil || !r.owned() {
		c.mu.Unlock()
		return nil
	}
	g, q := r.owner.(*get), r.tag
	x := g.x
	n := uint32(r.bhs.DataLen())
	q.got += n
	q.idle = false
	c.gets.move(q.order)
	c.stats.payloadIn.Add(uint64(n))
	var reject *inPDU
	if good {
		g.got += n
	} else {
		reject = newInPDU(0)
		reject.pdu.BHS = r.bhs
		reject.pdu.Bad = errDataDigest
	}
	switch {
	case c.rec != nil:
		c.rec.dataOutEnded(q, n, good, r.bhs.Final())
	case !good:
		x.Err = errDataDigest
	case r.bhs.Final() && q.got < q.n && x.Err == nil && !g.fault:
		x.Err = iscsi.ErrShortData
	}
	if good && g.fault && x.Err == nil {
		x.Err = iscsi.ErrMemoryFault
	}
	if q.got == q.n || r.bhs.Final() {
		c.gets.close(q)
	}
	if x.Err != nil || g.got == x.Len {
		// A failed transfer waits for nothing: data that is still to come for its
		// tags is dropped.
		c.gets.remove(g)
		c.tx.done(x)
	}
	c.pumpLocked(x.ITT)
	c.mu.Unlock()
	if reject != nil {
		return r.notify(reject)
	}
	return nil
}
