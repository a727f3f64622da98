package iser

import (
	"fmt"

	"softiser/internal/iscsi"
	"softiser/internal/rdmamsg"
	"softiser/rdma"
)

// recvHandler is the handler of the receive completion queue: one Send of the
// peer is one PDU.
func (c *Conn) recvHandler(cq *rdma.CQ) {
	if !c.started.Load() {
		<-c.startCh
	}
	wcs := rdmamsg.LendCompletions()
	c.reapReceives(cq, wcs[:])
	wcs.GiveBack()
	if c.unread.behind.Load() {
		c.awaitReader()
	}
}

// awaitReader keeps a peer that does not read from being read, until it has taken
// what it made us say or the connection is ending. Nothing that has arrived waits
// here: a peer that is kept waiting holds none of the shared receive buffers.
func (c *Conn) awaitReader() {
	c.mu.Lock()
	for full := c.unread.Full(); full && c.st == iscsi.ConnFull; full = !c.unread.Room() {
		c.mu.Unlock()
		select {
		case <-c.unread.room:
		case <-c.qp.Failing():
			return
		}
		c.mu.Lock()
	}
	c.mu.Unlock()
}

func (c *Conn) reapReceives(cq *rdma.CQ, wcs []rdma.WC) {
	for batch := range rdmamsg.Batches(cq, wcs) {
		n := c.batch.Add(1)
		for len(batch) > 0 {
			batch = batch[c.received(batch, n):]
		}
		c.Push() // what the PDUs of this batch were answered with
	}
}

// received handles messages that have come together, and returns how many: in the full feature
// phase all of them, otherwise one, as what the upper layer makes of it decides about the next one.
func (c *Conn) received(batch []rdma.WC, n uint32) int {
	var first *iscsi.PDU
	var spent rdmamsg.Spent // buffers that nobody needs beyond the up-call
	last := &first
	c.mu.Lock()
	if c.st != iscsi.ConnFull {
		batch = batch[:1]
	}
	for i := range batch {
		if p := c.takeLocked(&batch[i], &spent); p != nil {
			p.Batch = n
			*last, last = p, &p.Next
		}
	}
	*last = nil
	c.mu.Unlock()
	if first != nil {
		c.up.ControlNotify(first)
	}
	spent.Free()
	return len(batch)
}

// takeLocked takes one message apart. It returns the PDU for the upper layer, if there is one.
// Buffers that nobody needs beyond the up-call go to spent.
func (c *Conn) takeLocked(wc *rdma.WC, spent *rdmamsg.Spent) *iscsi.PDU {
	b := c.link.Received(wc)
	r, _ := b.App.(*recvPDU)
	if r == nil {
		r = &recvPDU{buf: b}
		r.recycle = r.free
		b.App = r
	}
	p := &r.pdu
	up := false
	if wc.Status == rdma.StatusSuccess {
		var err error
		if up, err = c.dispatchLocked(p, b.Msg(wc.ByteLen), wc); err != nil {
			c.failLocked(err)
		}
	}
	if !up {
		spent.Put(b)
		return nil
	}
	more := len(p.AHS)+len(p.Data) > 0
	if !more && passing(p.BHS.Opcode()) {
		p.Recycle = nil
		spent.Put(b)
		return p
	}
	p.Recycle = r.recycle
	if scarce := c.link.Keep(b); scarce && more && c.role == iscsi.RoleTarget && c.st == iscsi.ConnFull {
		p.AHS, p.Data, p.NoRoom = nil, nil, true
	}
	return p
}

// passing tells the PDUs that nobody keeps beyond the up-call when they have no data.
func passing(op iscsi.Opcode) bool {
	return op == iscsi.OpSCSICommand || op == iscsi.OpSCSIResponse
}

// recvPDU is the PDU that may be in a receive buffer. It stays with the buffer.
type recvPDU struct {
	pdu     iscsi.PDU
	buf     *rdmamsg.Recv
	recycle func(*iscsi.PDU)
}

// free is the Recycle of the PDU.
func (r *recvPDU) free(*iscsi.PDU) {
	r.pdu.Data, r.pdu.AHS, r.pdu.Bad = nil, nil, nil
	r.buf.Free()
}

// dispatchLocked takes a message apart and reports whether it goes up. The error
// ends the connection.
func (c *Conn) dispatchLocked(p *iscsi.PDU, msg []byte, wc *rdma.WC) (up bool, err error) {
	if c.st >= iscsi.ConnClosing || c.up == nil {
		return false, nil
	}
	if len(msg) < HeaderLen {
		return false, fmt.Errorf("%w: %d bytes are shorter than the header", errFormat, len(msg))
	}
	switch msg[0] & typeMask {
	case typeControl:
	case typeHello, typeHelloReply:
		if c.st != iscsi.ConnFull {
			return false, errHello
		}
		return false, c.hello.take(msg, c.info.ORD)
	default:
		return false, fmt.Errorf("%w: message type %#x", errFormat, msg[0]>>4)
	}
	h, bhs, ahs, data, err := split(msg)
	if err != nil {
		return false, err
	}
	c.stats.pdusIn++
	op := bhs.Opcode()
	p.BHS, p.AHS, p.Data, p.Ref, p.Bad, p.Bufs, p.NoRoom = *bhs, ahs, data, iscsi.Ref{}, nil, nil, false
	if wc.Flags&rdma.WCWithInv != 0 && (!c.inv || op != iscsi.OpSCSIResponse) {
		return false, fmt.Errorf("iser: Send with Invalidate carries a %s, or was not agreed on", op)
	}
	if c.role == iscsi.RoleTarget {
		return c.fromInitiatorLocked(&h, p, op)
	}
	return c.fromTargetLocked(p, op, wc)
}

// fromInitiatorLocked checks a PDU at the target.
func (c *Conn) fromInitiatorLocked(h *header, p *iscsi.PDU, op iscsi.Opcode) (bool, error) {
	switch {
	case op.Known() && op.FromTarget():
		return false, fmt.Errorf("%w: the initiator sent a %s", errFormat, op)
	case op == iscsi.OpSNACK:
		// RFC 7145 §7.3.11: there is nothing to ask for again.
		p.Bad = &iscsi.ProtocolError{Reason: iscsi.RejectSNACK, Msg: "SNACK over iSER"}
	case op == iscsi.OpDataOut:
		if p.BHS.TTT() != iscsi.ReservedTag {
			p.Bad = &iscsi.ProtocolError{Reason: iscsi.RejectInvalidField, Msg: "solicited Data-Out over iSER"}
		}
		c.stats.payloadIn += uint64(len(p.Data))
	case op == iscsi.OpSCSICommand:
		p.Ref = h.ref()
		c.stats.payloadIn += uint64(len(p.Data))
	}
	if c.st == iscsi.ConnFull {
		if c.hello.state == helloWait {
			return false, fmt.Errorf("%w: %s before the Hello that was agreed on", errFormat, op)
		}
		c.quiet = false
	}
	return true, nil
}

// fromTargetLocked checks a PDU at the initiator, and closes the windows of the
// task that it ends.
func (c *Conn) fromTargetLocked(p *iscsi.PDU, op iscsi.Opcode, wc *rdma.WC) (bool, error) {
	switch {
	case op == iscsi.OpDataIn || op == iscsi.OpR2T:
		return false, fmt.Errorf("%w: %s over iSER", errFormat, op)
	case op.Known() && !op.FromTarget():
		return false, fmt.Errorf("%w: the target sent a %s", errFormat, op)
	case op != iscsi.OpSCSIResponse:
		return true, nil
	}
	k := c.tasks.find(p.BHS.ITT())
	if k == nil {
		if wc.Flags&rdma.WCWithInv != 0 {
			return false, fmt.Errorf("iser: the response to unknown task %#x invalidates STag %#08x", p.BHS.ITT(), wc.InvSTag)
		}
		return true, nil
	}
	if wc.Flags&rdma.WCWithInv != 0 && (!k.hasInv || wc.InvSTag != k.inv) {
		return false, fmt.Errorf("iser: the response to task %#x invalidates STag %#08x, which is not the task's", k.itt, wc.InvSTag)
	}
	if k.in != nil {
		// What has arrived is not counted by RDMA: it is what was asked for less the
		// underflow.
		n, r := k.inLen, p.BHS.SCSIResponse()
		if r.ResidualFlags()&iscsi.ResidualUnderflow != 0 {
			n -= min(n, r.Residual())
		}
		c.stats.payloadIn += uint64(n)
	}
	if !c.tasks.release(k, &c.windows) {
		// The target's answer stands, but the data is not there.
		p.BHS.SCSIResponse().SetResponse(iscsi.ResponseTargetFailure)
	}
	return true, nil
}

// sendHandler is the handler of the send completion queue: what was sent or read
// is complete.
func (c *Conn) sendHandler(cq *rdma.CQ) {
	wcs := rdmamsg.LendCompletions()
	c.reapSends(cq, wcs[:])
	wcs.GiveBack()
}

func (c *Conn) reapSends(cq *rdma.CQ, wcs []rdma.WC) {
	for c.push(cq, wcs) {
	}
}
