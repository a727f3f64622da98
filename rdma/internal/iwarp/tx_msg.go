package iwarp

import (
	"encoding/binary"

	"softiser/rdma/internal/mem"
	"softiser/rdma/internal/verbs"
	"softiser/rdma/internal/wire"
)

// txMsg is the message in progress.
type txMsg struct {
	active bool
	resp   bool // Read Response; otherwise e is a slot of the send queue
	e      *verbs.WQE
	op     wire.Opcode
	imm    bool // Immediate Data follows (verbs.OpWriteImm)
	msn    uint32
	stag   uint32 // tagged: sink
	to     uint64
	length uint32
	off    uint32
	full   int // tagged: payload of its segments but the last
	cur    mem.Cursor
	src    *mem.Region // Read Response
	gen    uint64      // of src, when cur was set
	srcTag uint32
	srcTO  uint64
	ask    bool // whether it is in memory, as all of it so far was: then sending it cannot wait for a disk
	load   bool // that is to be read before the kernel copies it, see lately
}

// nextMSN is the number of the next message, by queue number.
type nextMSN [4]uint32

func (s *nextMSN) take(qn int) uint32 {
	n := s[qn]
	s[qn]++
	return n
}

// plain: a message that needs nothing but its memory.
func plain(op verbs.Opcode) bool {
	return op == verbs.OpSend || op == verbs.OpSendInv || op == verbs.OpWrite
}

// startPlain makes e, a plain message or the Write of a WriteImm, the message in progress.
func (m *txMsg) startPlain(e *verbs.WQE, next *nextMSN) {
	*m = txMsg{active: true, e: e, length: e.Length}
	m.cur.Set(e.Segs)
	if e.Op == verbs.OpWrite || e.Op == verbs.OpWriteImm {
		m.op = wire.Write
		m.stag, m.to = e.Remote.STag, e.Remote.TO
		m.imm = e.Op == verbs.OpWriteImm
		return
	}
	m.op = wire.Send
	if e.Op == verbs.OpSendInv {
		m.op = wire.SendInv
	}
	if e.Flags&verbs.FlagSolicited != 0 {
		m.op += wire.SendSE - wire.Send
	}
	m.msn = next.take(wire.QNSend)
}

// startImm makes the Immediate Data of e the message in progress.
func (m *txMsg) startImm(next *nextMSN) {
	m.op = wire.Immediate
	if m.e.Flags&verbs.FlagSolicited != 0 {
		m.op = wire.ImmediateSE
	}
	m.msn = next.take(wire.QNSend)
	m.imm, m.length, m.off = false, 0, 0
}

// appendHeader appends the headers of the next segment, of n bytes of payload, to b: MPA's length,
// DDP's, and RDMAP's of its type.
func (m *txMsg) appendHeader(b []byte, info *wire.Info, n int, last bool) []byte {
	b = binary.BigEndian.AppendUint16(b, uint16(info.Hdr+n))
	if info.Tagged {
		h := wire.Tagged{Ctrl: wire.Ctrl(m.op, last), STag: m.stag, TO: m.to + uint64(m.off)}
		return h.Append(b)
	}
	u := wire.Untagged{Ctrl: wire.Ctrl(m.op, last), QN: info.QN, MSN: m.msn, MO: m.off}
	if m.op.Invalidates() {
		u.Inv = m.e.Inv
	}
	b = u.Append(b)
	switch m.op {
	case wire.ReadRequest:
		h := wire.ReadReq{SinkSTag: m.stag, SinkTO: m.to, Size: m.length, SrcSTag: m.e.Remote.STag, SrcTO: m.e.Remote.TO}
		return h.Append(b)
	case wire.AtomicReq:
		a := &m.e.Atom
		h := wire.Atomic{Op: wire.FetchAdd, ID: m.msn, STag: m.e.Remote.STag, TO: m.e.Remote.TO, Data: a.Data, Mask: a.Mask, Compare: a.Compare, CompareMask: a.CompareMask}
		if m.e.Op == verbs.OpCmpSwap {
			h.Op = wire.CmpSwap
		}
		return h.Append(b)
	case wire.AtomicResp:
		h := wire.AtomicReply{ID: m.stag, Value: m.to}
		return h.Append(b)
	case wire.Immediate, wire.ImmediateSE:
		return binary.BigEndian.AppendUint64(b, m.e.Imm)
	}
	return b
}

const (
	copyMax = 256 // payloads up to this are copied next to their header: cheaper than a piece of their own
	hdrRoom = wire.MaxHdr + copyMax + 3 + wire.CRCLen
)

// framing is how messages are cut into FPDUs; a connection keeps it.
type framing struct {
	crc         bool
	maxTagged   int // payload of a full segment, in whole pages
	mostTagged  int // and what it may be, see full
	maxUntagged int
}

// init is for FPDUs of up to fpdu bytes.
func (f *framing) init(crc bool, fpdu int) {
	f.crc = crc
	f.maxTagged = (fpdu - wire.LenField - wire.TaggedLen - wire.CRCLen) &^ 3
	f.mostTagged = f.maxTagged
	if f.maxTagged >= 2*directMin {
		f.maxTagged &^= directMin - 1 // whole pages, as most buffers are
	}
	f.maxUntagged = (fpdu - wire.LenField - wire.UntaggedLen - wire.CRCLen) &^ 3
}

// segmentLen is how much payload the next segment of m carries.
func (f *framing) segmentLen(m *txMsg, info *wire.Info) int {
	if !info.Data {
		return 0
	}
	if !info.Tagged {
		return int(min(m.length-m.off, uint32(f.maxUntagged)))
	}
	if m.off == 0 {
		m.full = f.full(m)
	}
	n := min(int(m.length-m.off), m.full)
	if rest := int(m.length-m.off) - n; rest > 0 && rest < directMin && n >= 2*directMin {
		n -= directMin // no short last segment, which the peer would not place directly
	}
	return n
}

// cacheLine is the length of a line of the processor's cache, bytes.
const cacheLine = 64

// full is the payload of the segments, but the last, of m, which is tagged: whole pages. Where
// those leave no more than pastMax for a last segment of a Read Response (1 MiB is 17 times 60 KiB
// and a page), the others take it, in whole lines, if they may be so long: the peer looks at a short
// one and reads it in calls of their own, as many as for a long one.
func (f *framing) full(m *txMsg) int {
	n := int(m.length)
	k, rest := n/f.maxTagged, n%f.maxTagged
	if !m.resp || k == 0 || rest == 0 || rest > pastMax {
		return f.maxTagged
	}
	even := (n/k + cacheLine) &^ (cacheLine - 1) // k times that is more than n
	if even > f.mostTagged {
		return f.maxTagged
	}
	return even
}
