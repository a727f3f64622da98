package iser

import (
	"fmt"

	"softiser/internal/iscsi"
	"softiser/internal/rdmamsg"
	"softiser/internal/segs"
	"softiser/rdma"
)

// sendInitiatorLocked queues a PDU of the initiator. A SCSI Command opens the
// windows over its buffers; its unsolicited data is copied, so that the memory is
// free of the connection as soon as the windows are closed.
func (c *Conn) sendInitiatorLocked(p *iscsi.PDU) error {
	b := p.Bufs
	if op := p.BHS.Opcode(); op != iscsi.OpSCSICommand || b == nil {
		m := c.messageLocked(&header{}, p)
		if op == iscsi.OpNopOut && p.BHS.ITT() == iscsi.ReservedTag {
			c.unread.owe(m) // a ping's answer: the target decides how many of these there are
		}
		c.pump.Send(m)
		return nil
	}
	itt, out, in := p.BHS.ITT(), uint64(segs.Total(b.Out)), uint64(segs.Total(b.In))
	switch {
	case c.tasks.find(itt) != nil:
		return fmt.Errorf("iser: task tag %#x is in use", itt)
	case uint64(b.Unsolicited) > out || b.Immediate > b.Unsolicited || int(b.Immediate)+len(p.AHS) > RecvDataLen || len(p.Data) > 0:
		return fmt.Errorf("iser: %d bytes of immediate and %d of unsolicited data do not fit the %d bytes to write", b.Immediate, b.Unsolicited, out)
	case in > 1<<32-1 || out > 1<<32-1:
		return fmt.Errorf("iser: a command of %d and %d bytes", in, out)
	}
	var h header
	k := c.tasks.add(itt, b)
	b.InLen = 0
	var err error
	if out > uint64(b.Unsolicited) {
		if k.out, h.WriteSTag, h.WriteBase, err = c.windows.Open(b.Out, b.Unsolicited, rdma.AccessRemoteRead); err == nil {
			h.wsv = true
			k.inv, k.hasInv = h.WriteSTag, true
			if c.cfg.rfc && !c.params.TaggedBufferForSolicitedDataOnly {
				h.WriteBase -= uint64(b.Unsolicited) // RFC 7145 §6.9: the start of the whole buffer
			}
		}
	}
	if in > 0 && err == nil {
		if k.in, h.ReadSTag, h.ReadBase, err = c.windows.Open(b.In, 0, rdma.AccessRemoteWrite|rdma.AccessLocalWrite|rdma.AccessScratch); err == nil {
			h.rsv, k.inLen = true, uint32(in)
			k.inv, k.hasInv = h.ReadSTag, true
		}
	}
	if err != nil {
		c.tasks.release(k, &c.windows)
		return fmt.Errorf("iser: %w", err)
	}
	c.pump.Send(c.commandLocked(&h, p, k, 0, b.Immediate))
	for off, sn := b.Immediate, uint32(0); off < b.Unsolicited; sn++ {
		n := min(b.Unsolicited-off, c.params.MaxXmitDataSegmentLength, RecvDataLen)
		var q iscsi.PDU
		d := q.BHS.NewDataOut()
		d.SetITT(itt)
		d.SetExpStatSN(p.BHS.ExpStatSN())
		d.SetDataSN(sn)
		d.SetOffset(off)
		d.SetFinal(off+n == b.Unsolicited)
		c.pump.Send(c.commandLocked(&header{}, &q, k, off, n))
		off += n
	}
	return nil
}

// commandLocked is messageLocked with n bytes of the task's output as data.
func (c *Conn) commandLocked(h *header, p *iscsi.PDU, k *task, off, n uint32) *rdmamsg.Message {
	if n == 0 {
		return c.messageLocked(h, p)
	}
	m := c.pump.Message(HeaderLen + iscsi.BHSLen + len(p.AHS) + int(n) + iscsi.PadLen(int(n)))
	b := h.append(m.Buf)
	b = append(b, p.BHS[:]...)
	bhs := (*iscsi.BHS)(b[HeaderLen:])
	bhs.SetAHSLen(len(p.AHS))
	bhs.SetDataLen(int(n))
	b = append(b, p.AHS...)
	for _, s := range k.bufs.Out {
		if off >= uint32(len(s)) {
			off -= uint32(len(s))
			continue
		}
		s = s[off:]
		off = 0
		s = s[:min(uint32(len(s)), n)]
		b = append(b, s...)
		if n -= uint32(len(s)); n == 0 {
			break
		}
	}
	data := bhs.DataLen()
	m.Buf = append(b, make([]byte, iscsi.PadLen(data))...)
	c.stats.pdusOut++
	c.stats.payloadOut += uint64(data)
	c.stats.copied += uint64(data)
	return m
}

// ReleaseTask implements iscsi.Datamover.
func (c *Conn) ReleaseTask(b *iscsi.TaskBuffers) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if b.Slot < 0 || b.Slot >= len(c.tasks.slots) {
		return
	}
	if k := c.tasks.slots[b.Slot]; k.bufs == b {
		c.tasks.release(k, &c.windows)
	}
}
