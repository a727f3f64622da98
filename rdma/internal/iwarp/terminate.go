package iwarp

import (
	"encoding/binary"
	"time"

	"softiser/internal/sockio"
	"softiser/rdma/internal/verbs"
	"softiser/rdma/internal/wire"
)

// Terminate messages (RFC 5040 §4.8): that of this side, which goes out behind everything else,
// and that of the peer, which may lie among what nobody has read.

// termLocked remembers the Terminate to send; the first one counts.
func (qp *QP) termLocked(t *wire.Term) {
	if qp.term == nil && qp.Err == nil {
		qp.term = t
	}
}

// remoteTermLocked completes the request that the peer's Terminate is about with
// the matching status: the oldest one that can have caused it.
func (qp *QP) remoteTermLocked(t *wire.Term) {
	st := verbs.StatusRemoteOp
	switch c := t.Cause; {
	case c.Layer() == wire.LayerRDMAP && c.EType() == wire.ETypeProtection,
		c.Layer() == wire.LayerDDP && c.EType() == wire.ETypeTagged:
		st = verbs.StatusRemoteAccess
	case c == wire.CauseTooLong, c == wire.CauseNoBuffer:
		st = verbs.StatusRemoteInvalid
	case c.Layer() == wire.LayerLLP:
		st = verbs.StatusFatal
	}
	var op wire.Opcode = 0xff
	if len(t.DDP) >= 2 {
		op = wire.Control(uint16(t.DDP[0])<<8 | uint16(t.DDP[1])).Op()
	}
	for i := qp.SQ.Head; i != qp.SQ.Tail; i++ {
		e := qp.SQ.At(i)
		if e.Done {
			continue
		}
		var fits bool
		switch op {
		case wire.Write:
			fits = e.Op == verbs.OpWrite || e.Op == verbs.OpWriteImm
		case wire.ReadRequest:
			fits = e.Op == verbs.OpRead
		case wire.AtomicReq:
			fits = e.Op == verbs.OpFetchAdd || e.Op == verbs.OpCmpSwap
		case 0xff:
			fits = true
		default:
			fits = op.IsSend() && (e.Op == verbs.OpSend || e.Op == verbs.OpSendInv)
		}
		if fits {
			e.Status = st
			return
		}
	}
}

// lastMax is how much is read for the peer's last words.
const lastMax = 1 << 20

// lastWords is the Terminate among what the peer has sent before the socket took nothing any more;
// nil: there is none. A peer that does not take what is still on its way to it (siw) closes with a
// reset behind its Terminate, and the transmitter may meet that before the receiver has read why.
// What else there is is not delivered: the connection has failed.
func (x *receiver) lastWords() *wire.Term {
	in, qp := &x.in, x.qp
	qp.Mu.Lock()
	broken := qp.tx.broken
	qp.Mu.Unlock()
	if !broken || x.err != nil || in.cuts.i < in.cuts.n {
		return nil
	}
	b := append([]byte(nil), in.buf[in.r:in.w]...)
	for end := false; !end && len(b) < lastMax; {
		at := len(b)
		b = append(b, make([]byte, 16<<10)...)
		n, err := qp.conn.Read(b[at:])
		b, end = b[:at+max(n, 0)], n <= 0 || err != nil
	}
	for b = b[min(len(b), x.toNext()):]; len(b) >= wire.LenField+wire.UntaggedLen; {
		whole := wire.FPDULen(int(binary.BigEndian.Uint16(b)))
		if len(b) < whole || x.crcOn && wire.CRC(0, b[:whole-wire.CRCLen]) != wire.GetCRC(b[whole-wire.CRCLen:]) {
			return nil
		}
		ulpdu := b[wire.LenField:][:binary.BigEndian.Uint16(b)]
		var t wire.Term
		if len(ulpdu) > wire.UntaggedLen && wire.Control(binary.BigEndian.Uint16(ulpdu)).Op() == wire.Terminate && t.Parse(ulpdu[wire.UntaggedLen:]) == nil {
			return &t
		}
		b = b[whole:]
	}
	return nil
}

// sendTerminate sends what is left of the round, so that the Terminate starts at
// an FPDU boundary, and then the Terminate. Preconditions: there is no transmitter
// any more.
func (qp *QP) sendTerminate(term *wire.Term) {
	t := &qp.tx
	h := wire.Untagged{Ctrl: wire.Ctrl(wire.Terminate, true), QN: wire.QNTerminate, MSN: 1}
	b := wire.AppendFPDU(nil, term.Append(h.Append(nil)), t.form.crc)
	left := append([]sockio.Vec(nil), t.round.iov...)
	var v sockio.Vec
	sockio.Set(&v, b)
	left = append(left, v)
	qp.conn.SetWriteDeadline(time.Now().Add(termTimeout))
	_ = qp.conn.WriteLoop(func(uintptr) bool {
		for len(left) > 0 {
			n, err := t.writeLast(left)
			if err == sockio.ErrAgain {
				return false
			}
			if err != nil {
				return true
			}
			left = sockio.Skip(left, n)
		}
		return true
	})
}

// writeLast sends from left, which begins with the rest of the round. While it waits for room
// the memory of Read Responses may be revoked, and then be in use for something else: whoever
// does that finds io held for as long as the memory is read.
func (t *transmitter) writeLast(left []sockio.Vec) (n int, err error) {
	t.io.Lock()
	defer t.io.Unlock()
	if t.round.poison {
		return 0, errPoison
	}
	if n, err = t.qp.conn.Writev(left[:min(len(left), sockio.MaxVec)], false); n > 0 {
		t.round.passed(n)
	}
	return n, err
}
