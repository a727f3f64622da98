package iscsitcp

import (
	"encoding/binary"
	"fmt"

	"softiser/internal/crc32c"
	"softiser/internal/iscsi"
	"softiser/internal/segs"
)

// Begin implements pdustream.Parser: it looks at the BHS, unless the peer has to read
// before it is read from.
func (r *receiver) Begin(b []byte) (int, error) {
	if len(b) < iscsi.BHSLen {
		return 0, r.stranger(iscsi.Opcode(b[0]))
	}
	c := r.c
	r.bhs = iscsi.BHS(b)
	parking := false
	for full := true; full; {
		c.mu.Lock()
		parking = c.park != nil
		r.hd, r.dd = c.digestsLocked()
		full = c.st == iscsi.ConnFull && c.tx.unsent.Full()
		c.mu.Unlock()
		if full {
			r.Batch()
			r.awaitReader()
		}
	}
	if parking && c.mayPark() {
		return 0, errParked
	}
	n := iscsi.BHSLen + r.bhs.AHSLen()
	if r.hd {
		n += iscsi.DigestLen
	}
	if r.hd && c.rec != nil {
		return n, nil // lengths are looked at once their digest is known to be good; see Header
	}
	return n, r.lengths()
}

// strangerBytes is how much is repeated of what no target would say.
const strangerBytes = 32

// stranger is an error when the first byte that an initiator receives is none of a target, which
// answers a Login Request with a Login Response or a Reject. What somebody else says may be
// shorter than a BHS, and whoever waited for the rest of one would wait in vain.
func (r *receiver) stranger(first iscsi.Opcode) error {
	c := r.c
	c.mu.Lock()
	enabled := c.enabled // a connection that another process has brought so far
	c.mu.Unlock()
	if enabled || first == iscsi.OpLoginResponse || first == iscsi.OpReject {
		return nil
	}
	b := r.Unread()
	return protocolError("the other end does not speak iSCSI: it begins with %q", b[:min(len(b), strangerBytes)])
}

// lengths compares every length with what was negotiated, before anything is allocated or
// read because of it.
func (r *receiver) lengths() error {
	c := r.c
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

// badHeader handles a header digest error.
func (r *receiver) badHeader() error {
	c := r.c
	if c.rec == nil || !c.rec.tosses(r) {
		return errHeaderDigest
	}
	return nil
}

// begin goes on to the data of the PDU, which goes nowhere so far.
func (r *receiver) begin() {
	n := r.bhs.DataLen()
	tail := iscsi.PadLen(n)
	if r.dd && n > 0 {
		tail += iscsi.DigestLen
	}
	r.Body(n, tail)
	r.owner, r.tag, r.in = nil, nil, nil
}

// Header implements pdustream.Parser: it handles a complete header and decides where the
// data goes.
func (r *receiver) Header(h []byte) error {
	c := r.c
	if r.hd {
		n := len(h) - iscsi.DigestLen
		if crc32c.Update(0, h[:n]) != binary.LittleEndian.Uint32(h[n:]) {
			return r.badHeader()
		}
		h = h[:n]
		if c.rec != nil {
			r.astray = false
			if err := r.lengths(); err != nil {
				return err
			}
		}
	}
	if c.rec != nil {
		c.mu.Lock()
		c.rec.acked(r.bhs.ExpStatSN())
		c.mu.Unlock()
	}
	r.begin()
	switch r.bhs.Opcode() {
	case iscsi.OpDataIn:
		return r.dataIn()
	case iscsi.OpR2T:
		if r.Left() != 0 {
			return protocolError("R2T with data")
		}
		return nil
	case iscsi.OpDataOut:
		if r.bhs.TTT() != iscsi.ReservedTag {
			return r.dataOut()
		}
	}
	var room bool
	r.in, room = r.inPDU(len(h) - iscsi.BHSLen + r.Left())
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
	if r.Left() > 0 {
		n := len(p.AHS)
		p.Data = r.in.buf.b[n : n+r.Left() : n+r.Left()]
		r.one[0] = p.Data
		r.Aim(segs.Of(r.one[:], 0, r.Left()), nil)
	}
	return nil
}
