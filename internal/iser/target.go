package iser

import (
	"fmt"

	"softiser/internal/iscsi"
	"softiser/internal/rdmamsg"
	"softiser/internal/segs"
	"softiser/rdma"
)

// SendControl implements iscsi.Datamover.
func (c *Conn) SendControl(p *iscsi.PDU) error {
	c.mu.Lock()
	err := c.sendControlLocked(p)
	c.mu.Unlock()
	return err
}

func (c *Conn) sendControlLocked(p *iscsi.PDU) error {
	if c.st >= iscsi.ConnClosing {
		return c.endError()
	}
	if len(p.AHS) > iscsi.MaxAHSLen || len(p.AHS)%4 != 0 || len(p.AHS)+len(p.Data) > RecvDataLen {
		return fmt.Errorf("iser: %s with %d bytes of AHS and %d of data does not fit a message", p.BHS.Opcode(), len(p.AHS), len(p.Data))
	}
	if c.role == iscsi.RoleInitiator {
		return c.sendInitiatorLocked(p)
	}
	m := c.messageLocked(&header{}, p)
	c.unread.owe(m)
	// A SCSI Response closes the task's STag: the Read STag if there is one, else
	// the Write STag (RFC 7145 §7.3.2).
	if c.inv && p.BHS.Opcode() == iscsi.OpSCSIResponse {
		switch s := stagsOf(&p.Ref); {
		case s.ReadSTag != 0:
			m.Inv, m.HasInv = s.ReadSTag, true
		case s.WriteSTag != 0:
			m.Inv, m.HasInv = s.WriteSTag, true
		}
	}
	c.pump.Send(m)
	return nil
}

// messageLocked builds the Send of a control-type PDU: header, BHS, AHS, data,
// padding.
func (c *Conn) messageLocked(h *header, p *iscsi.PDU) *rdmamsg.Message {
	m := c.pump.Message(HeaderLen + iscsi.BHSLen + len(p.AHS) + len(p.Data) + iscsi.PadLen(len(p.Data)))
	b := h.append(m.Buf)
	b = append(b, p.BHS[:]...)
	bhs := (*iscsi.BHS)(b[HeaderLen:])
	bhs.SetAHSLen(len(p.AHS))
	bhs.SetDataLen(len(p.Data))
	b = append(b, p.AHS...)
	b = append(b, p.Data...)
	m.Buf = append(b, make([]byte, iscsi.PadLen(len(p.Data)))...)
	c.stats.pdusOut++
	return m
}

// checkTransfer checks what the upper layer passes down.
func checkTransfer(what string, x *iscsi.Transfer, stag uint32) error {
	switch n := uint64(segs.Total(x.Segs)); {
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
	err := c.putLocked(x, &to)
	c.mu.Unlock()
	return err
}

func (c *Conn) putLocked(x *iscsi.Transfer, to *stags) error {
	if c.st != iscsi.ConnFull {
		return c.endError()
	}
	x.Err, x.Own = nil, iscsi.Moving{}
	c.over.moving++
	c.stats.payloadOut += uint64(x.Len)
	if x.Len == 0 {
		c.over.put(x)
		return nil
	}
	x.Own.Slot = int(c.pump.Put(x, x.Segs, x.Len, rdma.RemoteAddr{STag: to.ReadSTag, TO: to.ReadBase + uint64(x.Offset)}))
	return nil
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
	if c.st != iscsi.ConnFull {
		return c.endError()
	}
	x.Err, x.Own = nil, iscsi.Moving{}
	c.over.moving++
	if x.Len == 0 {
		c.over.put(x)
		return nil
	}
	// The base points behind the unsolicited data, unless the peer follows the RFC's
	// default (TaggedBufferForSolicitedDataOnly=No, RFC 7145 §6.9).
	at := x.Offset - x.Unsolicited
	if c.cfg.rfc && !c.params.TaggedBufferForSolicitedDataOnly {
		at = x.Offset
	}
	x.Own.Slot = int(c.pump.Get(x, x.Segs, x.Len, rdma.RemoteAddr{STag: from.WriteSTag, TO: from.WriteBase + uint64(at)}))
	return nil
}

// AbortTransfer implements iscsi.Datamover. The window of a running Read stays
// open, aimed at scratch, until the Response has arrived: a Response to a dead
// STag would end the connection.
func (c *Conn) AbortTransfer(x *iscsi.Transfer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if x.Own.Aborted || c.st == iscsi.ConnDead {
		return
	}
	x.Own.Aborted = true
	c.pump.Abort(rdmamsg.Move(x.Own.Slot), x)
}
