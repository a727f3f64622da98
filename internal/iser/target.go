package iser

import (
	"fmt"

	"softiser/internal/iscsi"
	"softiser/rdma"
)

// SendControl implements iscsi.Datamover.
func (c *Conn) SendControl(p *iscsi.PDU) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.st >= stateClosing {
		return c.endError()
	}
	if len(p.AHS) > iscsi.MaxAHSLen || len(p.AHS)%4 != 0 || len(p.AHS)+len(p.Data) > RecvDataLen {
		return fmt.Errorf("iser: %s with %d bytes of AHS and %d of data does not fit a message", p.BHS.Opcode(), len(p.AHS), len(p.Data))
	}
	if c.role == iscsi.RoleInitiator {
		return c.sendInitiatorLocked(p)
	}
	o := c.messageLocked(&header{}, p)
	c.owedLocked(o)
	// A SCSI Response closes the task's STag: the Read STag if there is one, else
	// the Write STag (RFC 7145 §7.3.2).
	if c.inv && p.BHS.Opcode() == iscsi.OpSCSIResponse {
		switch s := stagsOf(&p.Ref); {
		case s.ReadSTag != 0:
			o.inv, o.hasInv = s.ReadSTag, true
		case s.WriteSTag != 0:
			o.inv, o.hasInv = s.WriteSTag, true
		}
	}
	c.pend.put(o)
	return nil
}

// messageLocked builds the Send of a control-type PDU: header, BHS, AHS, data,
// padding.
func (c *Conn) messageLocked(h *header, p *iscsi.PDU) *op {
	o := c.ops.get(opSend)
	n := HeaderLen + iscsi.BHSLen + len(p.AHS) + len(p.Data) + iscsi.PadLen(len(p.Data))
	b := o.inline[:0]
	if n > len(o.inline) {
		b = getBuffer(n)
	}
	b = h.append(b)
	b = append(b, p.BHS[:]...)
	bhs := (*iscsi.BHS)(b[HeaderLen:])
	bhs.SetAHSLen(len(p.AHS))
	bhs.SetDataLen(len(p.Data))
	b = append(b, p.AHS...)
	b = append(b, p.Data...)
	o.msg = append(b, make([]byte, iscsi.PadLen(len(p.Data)))...)
	c.stats.pdusOut.Add(1)
	return o
}

// checkTransfer checks what the upper layer passes down.
func checkTransfer(what string, x *iscsi.Transfer, stag uint32) error {
	n := uint64(0)
	for _, s := range x.Segs {
		n += uint64(len(s))
	}
	switch {
	case n != uint64(x.Len) || x.Len > ^uint32(0)-x.Offset:
		return fmt.Errorf("iser: %s of %d bytes at %d over segments of %d bytes", what, x.Len, x.Offset, n)
	case stag == 0 && x.Len > 0:
		return fmt.Errorf("iser: %s: the initiator advertised no buffer", what)
	}
	return nil
}

// PutData implements iscsi.Datamover: RDMA Writes into the Read STag.
func (c *Conn) PutData(x *iscsi.Transfer) error {
	to := stagsOf(x.Ref)
	if err := checkTransfer("PutData", x, to.ReadSTag); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.st != stateFull {
		return c.endError()
	}
	x.Err, x.Own = nil, iscsi.Moving{Slot: -1}
	c.stats.transfers.Add(1)
	c.stats.payloadOut.Add(uint64(x.Len))
	if x.Len == 0 {
		c.doneQ.put(x)
		return nil
	}
	o := c.ops.get(opWrite)
	o.x, o.segs, o.off, o.left, o.wrs = x, x.Segs, 0, x.Len, 0
	o.remote = rdma.RemoteAddr{STag: to.ReadSTag, TO: to.ReadBase + uint64(x.Offset)}
	c.pend.put(o)
	return nil
}

// get is one running GetData.
type get struct {
	x       *iscsi.Transfer
	op      *op   // what still waits in Conn.reads
	running []*op // Reads outstanding
	slot    int
}

// GetData implements iscsi.Datamover: RDMA Reads from the Write STag.
func (c *Conn) GetData(x *iscsi.Transfer) error {
	from := stagsOf(x.Ref)
	if err := checkTransfer("GetData", x, from.WriteSTag); err != nil {
		return err
	}
	if x.Offset < x.Unsolicited {
		return fmt.Errorf("iser: GetData at %d, where %d bytes came unsolicited", x.Offset, x.Unsolicited)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.st != stateFull {
		return c.endError()
	}
	x.Err, x.Own = nil, iscsi.Moving{Slot: -1}
	c.stats.transfers.Add(1)
	if x.Len == 0 {
		c.doneQ.put(x)
		return nil
	}
	g := c.getLocked(x)
	o := c.ops.get(opRead)
	o.g, o.segs, o.off, o.left = g, x.Segs, 0, x.Len
	// The base points behind the unsolicited data, unless the peer follows the RFC's
	// default (TaggedBufferForSolicitedDataOnly=No, RFC 7145 §6.9).
	at := x.Offset - x.Unsolicited
	if c.cfg.rfc && !c.params.TaggedBufferForSolicitedDataOnly {
		at = x.Offset
	}
	o.remote = rdma.RemoteAddr{STag: from.WriteSTag, TO: from.WriteBase + uint64(at)}
	g.op = o
	c.reads.put(o)
	return nil
}

func (c *Conn) getLocked(x *iscsi.Transfer) *get {
	var g *get
	if n := len(c.freeG); n > 0 {
		g = c.gets[c.freeG[n-1]]
		c.freeG = c.freeG[:n-1]
	} else {
		g = &get{slot: len(c.gets)}
		c.gets = append(c.gets, g)
	}
	g.x, x.Own.Slot = x, g.slot
	return g
}

// doneReadLocked ends one RDMA Read.
func (c *Conn) doneReadLocked(o *op, wc *rdma.WC) {
	g := o.g
	for i, r := range g.running {
		if r == o {
			last := len(g.running) - 1
			g.running[i] = g.running[last]
			g.running[last] = nil
			g.running = g.running[:last]
			break
		}
	}
	if wc.Status == rdma.StatusSuccess {
		c.stats.payloadIn.Add(uint64(o.n))
	} else if g.x.Err == nil {
		g.x.Err = c.wcError(wc)
	}
	c.ops.put(o)
	if g.x.Err != nil && g.op != nil {
		c.dropReadLocked(g)
	}
	if len(g.running) == 0 && g.op == nil {
		c.endGetLocked(g)
	}
}

func (c *Conn) endGetLocked(g *get) {
	c.doneQ.put(g.x)
	g.x = nil
	c.freeG = append(c.freeG, g.slot)
}

// dropReadLocked takes what has not begun of a GetData off the queue.
func (c *Conn) dropReadLocked(g *get) {
	var rest opList
	for c.reads.head != nil {
		if o := c.reads.pop(); o != g.op {
			rest.put(o)
		} else {
			c.ops.put(o)
		}
	}
	c.reads, g.op = rest, nil
}

// AbortTransfer implements iscsi.Datamover. The window of a running Read stays
// open, aimed at scratch, until the Response has arrived: a Response to a dead
// STag would end the connection.
func (c *Conn) AbortTransfer(x *iscsi.Transfer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if x.Own.Aborted || c.st == stateDead {
		return
	}
	x.Own.Aborted = true
	if x.Own.Slot < 0 || x.Own.Slot >= len(c.gets) || c.gets[x.Own.Slot].x != x {
		return // PutData: what has not begun is dropped by pumpLocked
	}
	g := c.gets[x.Own.Slot]
	if x.Err == nil {
		x.Err = iscsi.ErrAborted
	}
	if g.op != nil {
		c.dropReadLocked(g)
	}
	for _, r := range g.running {
		c.qp.DiscardRead(r.id)
	}
	if len(g.running) == 0 {
		c.endGetLocked(g)
	}
}

// purgeLocked completes, at the end of the connection, what was never queued.
// What was queued has been flushed.
func (c *Conn) purgeLocked(err error) {
	for c.pend.head != nil {
		o := c.pend.pop()
		if o.kind == opWrite {
			if o.x.Err == nil {
				o.x.Err = err
			}
			c.doneQ.put(o.x)
		}
		c.sentMessageLocked(o)
	}
	for c.reads.head != nil {
		g := c.reads.head.g
		if g.x.Err == nil {
			g.x.Err = err
		}
		c.dropReadLocked(g)
		if len(g.running) == 0 {
			c.endGetLocked(g)
		}
	}
}
