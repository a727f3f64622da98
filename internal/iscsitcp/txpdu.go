package iscsitcp

import (
	"softiser/internal/crc32c"
	"softiser/internal/iscsi"
	"softiser/internal/segs"
	"softiser/internal/sockio"
)

// outPDU is a PDU in the transmit queue.
//
//	head: BHS, AHS, header digest │ data (by reference, or own) │ tail: padding, data digest
type outPDU struct {
	next *outPDU

	head   []byte // backed by inline unless there is an AHS
	inline [iscsi.BHSLen + iscsi.DigestLen]byte
	own    []byte    // memory for copied data; kept across uses
	data   segs.View // the data segment
	tail   []byte
	tailB  [8]byte
	one    [1][]byte // segment list when data is own

	xfer    *iscsi.Transfer // target: the PutData that this PDU is part of
	task    *task           // initiator: whose Bufs data refers to
	sent    int             // bytes that the socket has taken
	length  int             // of the whole PDU; 0 until sealed
	cost    int             // what it counts for in transmitter.unsent; 0: it is no answer
	digest  bool            // digests apply (none during login)
	last    bool            // xfer is complete when this PDU has gone out
	taken   bool            // the transmitter has seen it: no more changes
	again   bool            // sent once more, after a SNACK
	payload bool            // data belongs to a SCSI task
}

// pduCost is the memory of a queued PDU without data, roughly.
const pduCost = 384

// setOwn makes the PDU's data a copy of b.
func (p *outPDU) setOwn(b []byte) {
	p.own = append(p.own[:0], b...)
	p.one[0] = p.own
	p.data = segs.Of(p.one[:], 0, len(p.own))
}

// bhs is the header, still changeable until the PDU is sealed.
func (p *outPDU) bhs() *iscsi.BHS { return (*iscsi.BHS)(p.head[:iscsi.BHSLen]) }

// seal completes a PDU just before its first byte goes out. It reports false if the
// data cannot be read.
func (p *outPDU) seal(hd, dd bool) bool {
	b := p.bhs()
	b.SetDataLen(p.data.Len())
	if hd && p.digest {
		p.head = appendDigest(p.head, crc32c.Update(0, p.head))
	}
	p.tail = append(p.tailB[:0], make([]byte, iscsi.PadLen(p.data.Len()))...)
	if dd && p.digest && p.data.Len() > 0 {
		crc, ok := p.data.Checksum(0)
		if !ok {
			return false
		}
		p.tail = appendDigest(p.tail, crc32c.Update(crc, p.tail))
	}
	p.length = len(p.head) + p.data.Len() + len(p.tail)
	return true
}

// appendVec appends what has not been sent yet, as far as room goes.
func (p *outPDU) appendVec(v []sockio.Vec) []sockio.Vec {
	skip := p.sent
	if skip < len(p.head) {
		v = sockio.Append(v, p.head[skip:])
		skip = 0
	} else {
		skip -= len(p.head)
	}
	d := p.data
	if skip < d.Len() {
		d.Skip(skip)
		skip = 0
		for d.Len() > 0 {
			if len(v) == cap(v) {
				return v
			}
			s := d.Next()
			v = sockio.Append(v, s)
			d.Skip(len(s))
		}
	} else {
		skip -= d.Len()
	}
	if len(v) < cap(v) {
		v = sockio.Append(v, p.tail[skip:])
	}
	return v
}

// detach copies what is left to send, so that the memory behind it can be given
// back. It returns how many payload bytes it copied; on a fault zeros go out.
func (p *outPDU) detach() int {
	rest := p.data
	done := min(max(p.sent-len(p.head), 0), rest.Len())
	rest.Skip(done)
	buf := make([]byte, p.data.Len())
	at := done
	for rest.Len() > 0 {
		s := rest.Next()
		segs.Copy(buf[at:], s)
		at += len(s)
		rest.Skip(len(s))
	}
	p.one[0] = buf
	p.data = segs.Of(p.one[:], 0, len(buf))
	return len(buf) - done
}

// reset makes the PDU ready for its next use; nothing is kept alive by it.
func (p *outPDU) reset() {
	if cap(p.own) > 16384 {
		p.own = nil
	}
	*p = outPDU{own: p.own[:0], head: nil}
	p.head = p.inline[:0]
}
