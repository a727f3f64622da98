package iscsitcp

import (
	"fmt"

	"softiser/internal/iscsi"
	"softiser/internal/segs"
)

// SendControl implements iscsi.Datamover.
func (c *Conn) SendControl(p *iscsi.PDU) error {
	op := p.BHS.Opcode()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.st >= iscsi.ConnClosing {
		if c.rec != nil && op == iscsi.OpSCSIResponse {
			p.BHS.SCSIResponse().SetExpDataSN(snOf(&p.Ref).dataSN())
			c.rec.sent(p) // kept for the connection to which the task is reassigned
		}
		return c.endError()
	}
	if len(p.Data) > iscsi.MaxDataLen || len(p.AHS) > iscsi.MaxAHSLen || len(p.AHS)%4 != 0 {
		return fmt.Errorf("iscsitcp: %s with %d bytes of AHS and %d of data cannot be framed", op, len(p.AHS), len(p.Data))
	}
	if c.role == iscsi.RoleInitiator {
		return c.sendInitiatorLocked(p, op)
	}
	if op == iscsi.OpSCSIResponse {
		p.BHS.SCSIResponse().SetExpDataSN(snOf(&p.Ref).dataSN())
	}
	if c.rec != nil {
		c.rec.sent(p) // a status of its own can be asked for again: no folding
	} else if op == iscsi.OpSCSIResponse && c.foldLocked(p) {
		return nil
	}
	c.queueControlLocked(p, op)
	if op == iscsi.OpLoginResponse && !c.upgradingLocked() {
		c.resumeRx = true
		c.cond.Broadcast()
	}
	return nil
}

func (c *Conn) queueControlLocked(p *iscsi.PDU, op iscsi.Opcode) *outPDU {
	o := c.tx.alloc(&p.BHS)
	o.digest = op != iscsi.OpLoginRequest && op != iscsi.OpLoginResponse
	o.bhs().SetAHSLen(len(p.AHS))
	o.Head = append(o.Head, p.AHS...)
	if len(p.Data) > 0 {
		o.setOwn(p.Data)
	}
	if c.role == iscsi.RoleTarget || op == iscsi.OpNopOut && p.BHS.ITT() == iscsi.ReservedTag {
		o.cost = pduCost + len(p.Data)
		c.tx.unsent.Add(o.cost)
	}
	c.tx.push(o)
	return o
}

// foldLocked makes a GOOD SCSI Response part of the task's last Data-In, if that
// is the last PDU in the queue and has not been looked at by the transmitter
// (RFC 7143 §11.7.3: the S bit).
func (c *Conn) foldLocked(p *iscsi.PDU) bool {
	o := c.tx.Last()
	if o == nil || o.Taken() || o.bhs().Opcode() != iscsi.OpDataIn || o.bhs().ITT() != p.BHS.ITT() || !o.bhs().Final() {
		return false
	}
	r := p.BHS.SCSIResponse()
	if r.Response() != iscsi.ResponseCompleted || r.Status() != 0 || len(p.Data) != 0 || r.ResidualFlags()&0x18 != 0 {
		return false
	}
	d := o.bhs().DataIn()
	d.SetHasStatus(true)
	d.SetStatus(0)
	d.SetSequence(p.BHS.Sequence())
	d.SetResidual(r.Residual(), r.ResidualFlags())
	return true
}

// checkTransfer checks what the upper layer passes down.
func checkTransfer(what string, x *iscsi.Transfer) error {
	switch n := segs.Total(x.Segs); {
	case n != int(x.Len) || x.Len > ^uint32(0)-x.Offset:
		return fmt.Errorf("iscsitcp: %s of %d bytes at %d over segments of %d bytes", what, x.Len, x.Offset, n)
	case x.Ref == nil:
		return fmt.Errorf("iscsitcp: %s for no command", what)
	}
	return nil
}

// PutData implements iscsi.Datamover: Data-In PDUs of at most the initiator's
// MaxRecvDataSegmentLength, F at the end of each MaxBurstLength.
func (c *Conn) PutData(x *iscsi.Transfer) error {
	if err := checkTransfer("PutData", x); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.st != iscsi.ConnFull {
		return c.endError()
	}
	x.Err, x.Own = nil, iscsi.Moving{Slot: -1}
	c.stats.transfers.Add(1)
	if x.Len == 0 {
		c.tx.done(x)
		return nil
	}
	seq := c.up.Sequence()
	segMax, burst := c.params.MaxXmitDataSegmentLength, c.params.MaxBurstLength
	sn := snOf(x.Ref).dataSN()
	v := segs.Of(x.Segs, 0, int(x.Len))
	if c.rec != nil {
		c.rec.put(x, v)
		return nil
	}
	for off := uint32(0); off < x.Len; {
		// A sequence ends at MaxBurstLength, counted from the start of the buffer.
		inBurst := burst - (x.Offset+off)%burst
		n := min(segMax, x.Len-off, inBurst)
		end := off+n == x.Len
		var b iscsi.BHS
		d := b.NewDataIn()
		d.SetITT(x.ITT)
		d.SetSequence(iscsi.Sequence{ExpCmdSN: seq.ExpCmdSN, MaxCmdSN: seq.MaxCmdSN})
		d.SetDataSN(sn)
		d.SetOffset(x.Offset + off)
		d.SetFinal(n == inBurst || end && x.Final)
		sn++
		o := c.tx.alloc(&b)
		o.digest, o.payload, o.xfer, o.last = true, true, x, end
		o.Data = v.First(int(n))
		v.Skip(int(n))
		c.tx.push(o)
		off += n
	}
	snOf(x.Ref).setDataSN(sn)
	return nil
}

// GetData implements iscsi.Datamover: R2Ts of at most MaxBurstLength, of which
// MaxOutstandingR2T may be open per task.
func (c *Conn) GetData(x *iscsi.Transfer) error {
	if err := checkTransfer("GetData", x); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.st != iscsi.ConnFull {
		return c.endError()
	}
	x.Err, x.Own = nil, iscsi.Moving{}
	c.stats.transfers.Add(1)
	if x.Len == 0 {
		x.Own.Slot = -1
		c.tx.done(x)
		return nil
	}
	c.gets.add(x)
	c.pumpLocked(x.ITT)
	if c.rec != nil {
		c.rec.watch()
	}
	return nil
}

// pumpLocked sends the R2Ts that a task may have outstanding now: first those for
// what was lost, then those for what was not asked for yet.
func (c *Conn) pumpLocked(itt uint32) {
	open := 0
	for g := c.gets.running.First(); g != nil; g = g.node.Next() {
		if g.itt == itt {
			open += g.open
		}
	}
	most := min(int(c.params.MaxOutstandingR2T), maxR2Ts)
	for g := c.gets.running.First(); g != nil; g = g.node.Next() {
		if g.itt != itt || g.x == nil {
			continue
		}
		for ; open < most; open++ {
			off, n, ok := g.wanted(c.params.MaxBurstLength)
			if !ok {
				break
			}
			r := c.gets.open(g, off, n)
			sn := snOf(g.x.Ref)
			r.sn = sn.r2tSN()
			sn.setR2TSN(r.sn + 1)
			c.sendR2TLocked(g.x, r)
		}
	}
}

func (c *Conn) sendR2TLocked(x *iscsi.Transfer, r *r2t) *outPDU {
	var b iscsi.BHS
	c.gets.send(r)
	q := b.NewR2T()
	q.SetLUN(x.LUN)
	q.SetITT(x.ITT)
	q.SetTTT(r.ttt)
	q.SetSequence(c.up.Sequence())
	q.SetR2TSN(r.sn)
	q.SetOffset(x.Offset + r.off)
	q.SetDesired(r.n)
	o := c.tx.alloc(&b)
	o.digest = true
	c.tx.push(o)
	return o
}

// AbortTransfer implements iscsi.Datamover. R2Ts that are out are forgotten:
// their data is dropped when it comes, so the transfer is complete at once.
func (c *Conn) AbortTransfer(x *iscsi.Transfer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if x.Own.Aborted || c.st == iscsi.ConnDead {
		return
	}
	x.Own.Aborted = true
	g := c.gets.find(x)
	if g == nil {
		return // PutData: the transmitter drops what has not begun
	}
	for c.placing == g {
		c.cond.Wait()
	}
	if g.x != x { // completed meanwhile
		return
	}
	if x.Err == nil {
		x.Err = iscsi.ErrAborted
	}
	c.gets.remove(g)
	c.tx.done(x)
}
