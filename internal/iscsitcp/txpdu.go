package iscsitcp

import (
	"softiser/internal/crc32c"
	"softiser/internal/iscsi"
	"softiser/internal/pdustream"
	"softiser/internal/segs"
)

// outPDU is a PDU in the transmit queue.
//
//	Head: BHS, AHS, header digest │ Data (by reference, or own) │ Tail: padding, data digest
type outPDU struct {
	pdustream.PDU[outPDU] // Head is backed by inline unless there is an AHS

	inline [iscsi.BHSLen + iscsi.DigestLen]byte
	own    []byte // memory for copied data; kept across uses
	tail   [8]byte
	one    [1][]byte // segment list when Data is own

	xfer    *iscsi.Transfer // target: the PutData that this PDU is part of
	task    *task           // initiator: whose Bufs Data refers to
	cost    int             // what it counts for in transmitter.unsent; 0: it is no answer
	digest  bool            // digests apply (none during login)
	hd, dd  bool            // and these are agreed on; set when it is picked
	last    bool            // xfer is complete when this PDU has gone out
	again   bool            // sent once more, after a SNACK
	payload bool            // Data belongs to a SCSI task
}

// pduCost is the memory of a queued PDU without data, roughly.
const pduCost = 384

// setOwn makes the PDU's data a copy of b.
func (p *outPDU) setOwn(b []byte) {
	p.own = append(p.own[:0], b...)
	p.one[0] = p.own
	p.Data = segs.Of(p.one[:], 0, len(p.own))
}

// bhs is the header, still changeable until the PDU is sealed.
func (p *outPDU) bhs() *iscsi.BHS { return (*iscsi.BHS)(p.Head[:iscsi.BHSLen]) }

// seal completes a PDU just before its first byte goes out. It reports false if the
// data cannot be read.
func (p *outPDU) seal() bool {
	b := p.bhs()
	b.SetDataLen(p.Data.Len())
	if p.hd {
		p.Head = appendDigest(p.Head, crc32c.Update(0, p.Head))
	}
	p.Tail = append(p.tail[:0], make([]byte, iscsi.PadLen(p.Data.Len()))...)
	if p.dd && p.Data.Len() > 0 {
		crc, ok := p.Data.Checksum(0)
		if !ok {
			return false
		}
		p.Tail = appendDigest(p.Tail, crc32c.Update(crc, p.Tail))
	}
	return true
}

// detach copies what is left to send, so that the memory behind it can be given
// back. It returns how many payload bytes it copied; on a fault zeros go out.
func (p *outPDU) detach() int {
	rest := p.Data
	done := min(max(p.Sent()-len(p.Head), 0), rest.Len())
	rest.Skip(done)
	buf := make([]byte, p.Data.Len())
	at := done
	for rest.Len() > 0 {
		s := rest.Next()
		segs.Copy(buf[at:], s)
		at += len(s)
		rest.Skip(len(s))
	}
	p.one[0] = buf
	p.Data = segs.Of(p.one[:], 0, len(buf))
	return len(buf) - done
}

// reset makes the PDU ready for its next use; nothing is kept alive by it.
func (p *outPDU) reset() {
	if cap(p.own) > 16384 {
		p.own = nil
	}
	*p = outPDU{own: p.own[:0]}
}
