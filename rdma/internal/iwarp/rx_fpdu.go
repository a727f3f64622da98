package iwarp

import (
	"encoding/binary"

	"softiser/rdma/internal/wire"
)

type rxStage uint8

const (
	rxHeader rxStage = iota
	rxPayload
	rxTrailer
)

// fpdu is the FPDU in progress: its header, where its payload goes, how far that has come,
// and what is wrong with it. It belongs to the receive goroutine.
type fpdu struct {
	stage   rxStage
	crc     uint32
	crcOver bool // nothing more to compute: there is none, it has been checked, or cannot be (memory fault)

	hdr      [wire.MaxHdr]byte // copy of its header, length field included
	hlen     int
	ctrl     wire.Control
	op       wire.Opcode
	tag      wire.Tagged
	unt      wire.Untagged
	ulen     int
	paylen   int
	left     int // payload bytes not placed yet
	dst      rxDest
	pend     wire.Cause // check that failed, raised after the trailer
	detail   string
	announce bool // it is an announcement, see ext.go
}

// parse starts the FPDU at the front of b. It returns the length of its header, or 0 when that
// is not there yet.
func (f *fpdu) parse(b []byte) int {
	if len(b) < wire.LenField {
		return 0
	}
	f.ulen = int(binary.BigEndian.Uint16(b))
	hl := wire.LenField
	if f.ulen >= 2 {
		if len(b) < 4 {
			return 0
		}
		f.ctrl = wire.Control(binary.BigEndian.Uint16(b[2:]))
		hl += wire.Ops[f.ctrl.Op()].Hdr
	}
	hl = min(hl, wire.LenField+f.ulen)
	if len(b) < hl {
		return 0
	}
	f.hlen = copy(f.hdr[:], b[:hl])
	f.paylen = f.ulen + wire.LenField - hl
	f.left = f.paylen
	f.pend, f.detail = causeNone, ""
	f.dst = rxDest{}
	f.announce = false
	return hl
}

// placed starts an RDMA Write of n bytes at its trailer: they are in place, and crc is that of
// its header hdr and of them. No place is looked up.
func (f *fpdu) placed(hdr []byte, n int, crc uint32) {
	f.hlen = copy(f.hdr[:], hdr)
	f.ctrl, f.op = wire.Control(binary.BigEndian.Uint16(hdr[wire.LenField:])), wire.Write
	f.ulen, f.paylen, f.left = wire.TaggedLen+n, n, 0
	f.pend, f.detail = causeNone, ""
	f.crc, f.announce = crc, false
	f.stage = rxTrailer
}

// ext is the RDMAP header behind the DDP header of an untagged segment.
func (f *fpdu) ext() []byte { return f.hdr[wire.LenField+wire.UntaggedLen:] }

// trailerLen is the length of pad and CRC.
func (f *fpdu) trailerLen() int { return wire.Pad(f.ulen) + wire.CRCLen }

// toNext is how far it is to the end, from the payload that is next, or from the trailer where
// that is; 0 between FPDUs.
func (f *fpdu) toNext() int {
	switch f.stage {
	case rxPayload:
		return f.left + f.trailerLen()
	case rxTrailer:
		return f.trailerLen()
	}
	return 0
}

// busy reports whether it still puts bytes into memory that its header names.
func (f *fpdu) busy() bool {
	return f.stage == rxPayload && f.left > 0 && f.ctrl.Tagged()
}

// sum continues the CRC over p, which is next.
func (f *fpdu) sum(p []byte) {
	if !f.crcOver {
		f.crc = wire.CRC(f.crc, p)
	}
}

// fail notes a failed check; the first one counts. What is left of the payload is dropped.
func (f *fpdu) fail(c wire.Cause, detail string) {
	if f.pend == causeNone {
		f.pend, f.detail = c, detail
	}
	f.dst = rxDest{kind: destScrap}
}

// refuse includes the refused DDP header in t (bits M and D), and with it its Read Request
// (R; RFC 5040 §4.8).
func (f *fpdu) refuse(t *wire.Term) {
	if f.hlen < wire.LenField+wire.TaggedLen {
		return
	}
	t.HasLen, t.SegLen = true, uint16(f.ulen)
	n := wire.UntaggedLen
	if f.ctrl.Tagged() {
		n = wire.TaggedLen
	}
	if f.hlen < wire.LenField+n {
		return
	}
	t.DDP = append([]byte(nil), f.hdr[wire.LenField:wire.LenField+n]...)
	if f.op == wire.ReadRequest && t.Cause.Layer() == wire.LayerRDMAP && f.hlen >= wire.LenField+n+wire.ReadReqLen {
		t.RDMAP = append([]byte(nil), f.hdr[wire.LenField+n:wire.LenField+n+wire.ReadReqLen]...)
	}
}
