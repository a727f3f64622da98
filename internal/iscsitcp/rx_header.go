package iscsitcp

import (
	"encoding/binary"
	"fmt"

	"softiser/internal/crc32c"
	"softiser/internal/iscsi"
)

// peekHeader copies the BHS and finds the length of the whole header, unless the
// peer has to read before it is read from.
func (c *Conn) peekHeader() {
	r := &c.rx
	r.bhs = iscsi.BHS(r.buf[r.r:])
	op := r.bhs.Opcode()
	login := op == iscsi.OpLoginRequest || op == iscsi.OpLoginResponse
	c.mu.Lock()
	r.hd, r.dd = c.digestsLocked()
	r.full = c.st == stateFull && c.tx.unsent.Full()
	c.mu.Unlock()
	r.hd, r.dd = r.hd && !login, r.dd && !login
	r.need = iscsi.BHSLen + r.bhs.AHSLen()
	if r.hd {
		r.need += iscsi.DigestLen
	}
}

// checkLengths compares every length with what was negotiated, before anything
// is allocated or read because of it.
func (c *Conn) checkLengths() error {
	if c.rx.hd && c.recovers() {
		return nil // once its digest is known to be good; see header
	}
	return c.lengths()
}

func (c *Conn) lengths() error {
	r := &c.rx
	op := r.bhs.Opcode()
	info := op.Info()
	limit := c.cfg.LoginDataLimit
	c.mu.Lock()
	if c.enabled {
		limit = int(c.params.MaxRecvDataSegmentLength)
	}
	c.mu.Unlock()
	switch n := r.bhs.DataLen(); {
	case n > limit:
		return protocolError("%s with a data segment of %d bytes; %d is the limit", op, n, limit)
	case r.bhs.AHSLen() > 0 && info.Name != "" && !info.AHS:
		return protocolError("%s with additional header segments", op)
	case info.Name != "" && op.FromTarget() == (c.role == iscsi.RoleTarget):
		return protocolError("the peer sent a %s, which is for the other side to send", op)
	}
	return nil
}

func protocolError(format string, args ...any) error {
	return &iscsi.ProtocolError{Reason: iscsi.RejectProtocol, Msg: fmt.Sprintf(format, args...), Fatal: true}
}

var errHeaderDigest = &iscsi.ProtocolError{Reason: iscsi.RejectProtocol, Msg: "header digest error", Fatal: true}

// header handles a complete header and decides where the data goes.
func (c *Conn) header() error {
	r := &c.rx
	h := r.buf[r.r : r.r+r.need]
	r.r += r.need
	r.need = iscsi.BHSLen
	if r.hd {
		n := len(h) - iscsi.DigestLen
		if crc32c.Update(0, h[:n]) != binary.LittleEndian.Uint32(h[n:]) {
			return c.badHeader()
		}
		h = h[:n]
		if c.recovers() {
			r.astray = false
			if err := c.lengths(); err != nil {
				return err
			}
		}
	}
	c.stats.pdusIn.Add(1)
	if c.keep != nil {
		c.mu.Lock()
		c.keep.acked(r.bhs.ExpStatSN())
		c.mu.Unlock()
	}
	r.phase, r.left = rxData, r.bhs.DataLen()
	r.owner, r.tag, r.in, r.dst, r.whole, r.direct = nil, nil, nil, view{}, view{}, false
	switch r.bhs.Opcode() {
	case iscsi.OpDataIn:
		return c.dataIn()
	case iscsi.OpR2T:
		if r.left != 0 {
			return protocolError("R2T with data")
		}
		return nil
	case iscsi.OpDataOut:
		if r.bhs.TTT() != iscsi.ReservedTag {
			return c.dataOut()
		}
	}
	var room bool
	r.in, room = c.inPDU(len(h) - iscsi.BHSLen + r.left)
	p := &r.in.pdu
	p.BHS = r.bhs
	if !room {
		p.NoRoom = true
		return nil // the data goes nowhere
	}
	if n := len(h) - iscsi.BHSLen; n > 0 {
		p.AHS = r.in.buf.b[:n:n]
		copy(p.AHS, h[iscsi.BHSLen:])
	}
	if r.left > 0 {
		n := len(p.AHS)
		p.Data = r.in.buf.b[n : n+r.left : n+r.left]
		r.scratch = append(r.scratch[:0], p.Data)
		r.dst = view{segs: r.scratch, n: r.left}
		r.whole, r.direct = r.dst, true
	}
	return nil
}
