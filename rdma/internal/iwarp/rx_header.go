package iwarp

import (
	"fmt"

	"softiser/rdma/internal/mem"
	"softiser/rdma/internal/mpa"
	"softiser/rdma/internal/verbs"
	"softiser/rdma/internal/wire"
)

// rxRecv is the Send in progress.
type rxRecv struct {
	active bool
	buf    verbs.RecvBuf
	got    uint64 // bytes placed or dropped
	status verbs.Status
}

// rxTerm is the Terminate in progress.
type rxTerm struct {
	b [wire.MaxTermLen]byte
	n int // bytes that have come
}

// begin checks the header in x.hdr and finds the place for its payload. The
// order of the checks is that of the layers: DDP version, RDMAP version and
// opcode, then queue or STag.
func (x *receiver) begin() {
	qp := x.qp
	if x.ulen < 2 {
		if x.ulen == 0 && !x.begun && qp.start.rtr != 0 {
			x.op = opZeroFPDU // zero-length FPDU as RTR message
			return
		}
		x.ctrl, x.op = 0, 0
		x.fail(wire.CauseMarker, fmt.Sprintf("ULPDU of %d bytes", x.ulen))
		return
	}
	c := x.ctrl
	x.op = c.Op()
	info := &wire.Ops[x.op]
	switch {
	case c.DV() != wire.DDPVersion:
		cause := wire.CauseVersion
		if c.Tagged() {
			cause = wire.CauseTaggedVersion
		}
		x.fail(cause, fmt.Sprintf("DDP version %d", c.DV()))
		return
	case c.RV() != wire.RDMAPVersion:
		x.fail(wire.CauseRDMAPVersion, fmt.Sprintf("RDMAP version %d", c.RV()))
		return
	case !x.op.Known(), x.op >= wire.Immediate && !qp.start.extended(), info.Tagged != c.Tagged():
		x.fail(wire.CauseOpcode, x.op.String())
		return
	case x.hlen < wire.LenField+info.Hdr:
		x.fail(wire.CauseMarker, fmt.Sprintf("ULPDU of %d bytes is shorter than the header of %v", x.ulen, x.op))
		return
	case !info.Data && x.paylen > 0, !info.Data && !c.Last():
		x.fail(wire.CauseOpUnspec, fmt.Sprintf("%v of %d bytes", x.op, x.ulen))
		return
	}
	if info.Tagged {
		x.tag.Parse(x.hdr[wire.LenField:])
		rdmapOps[x.op].begin(x)
		return
	}
	x.unt.Parse(x.hdr[wire.LenField:])
	if x.unt.QN != info.QN {
		x.fail(wire.CauseQN, fmt.Sprintf("%v on queue %d", x.op, x.unt.QN))
		return
	}
	if x.unt.MSN != x.msn[info.QN] {
		x.fail(wire.CauseMSNRange, fmt.Sprintf("%v with MSN %d, expected %d", x.op, x.unt.MSN, x.msn[info.QN]))
		return
	}
	if x.unt.MO != 0 && !rdmapOps[x.op].pieces {
		x.fail(wire.CauseMO, fmt.Sprintf("%v at offset %d", x.op, x.unt.MO))
		return
	}
	rdmapOps[x.op].begin(x)
}

// beginWrite: RDMA Write (RFC 5040 §5.1). Empty ones check nothing.
func (x *receiver) beginWrite() {
	qp := x.qp
	if x.paylen == 0 {
		x.announce = isAnnouncement(&x.tag)
		return
	}
	r, off, f := qp.find(x.tag.STag, x.tag.TO, uint64(x.paylen), mem.RemoteWrite)
	if f != mem.None {
		x.fail(faultCauses[f].tagged, fmt.Sprintf("RDMA Write of %d bytes to STag %#08x offset %#x", x.paylen, x.tag.STag, x.tag.TO))
		return
	}
	x.dst.setRegion(r, off)
	qp.lent.placed(r)
	r.Release()
}

// beginReadResponse: the oldest Read must have asked for exactly these bytes (RFC
// 5040 §5.2.3).
func (x *receiver) beginReadResponse() {
	qp := x.qp
	qp.Mu.Lock()
	o := qp.reads.oldestLocked()
	var sink *mem.Region
	var size uint32
	if o != nil && o.e.Op == verbs.OpRead {
		sink, size = o.sink, o.e.Length
	}
	qp.Mu.Unlock()
	if sink == nil {
		x.fail(wire.CauseDDPLocal, "RDMA Read Response without an outstanding RDMA Read")
		return
	}
	at := sink.State()
	end := uint64(x.rlen) + uint64(x.paylen)
	switch {
	case x.tag.STag != at.STag:
		x.fail(wire.CauseSTag, fmt.Sprintf("RDMA Read Response to STag %#08x, expected %#08x", x.tag.STag, at.STag))
	case x.paylen > 0 && x.tag.TO != at.Base+uint64(x.rlen):
		x.fail(wire.CauseBounds, fmt.Sprintf("RDMA Read Response at offset %#x, expected %#x", x.tag.TO, at.Base+uint64(x.rlen)))
	case end > uint64(size), x.ctrl.Last() && end != uint64(size):
		x.fail(wire.CauseBounds, fmt.Sprintf("RDMA Read Response of %d bytes, asked for %d", end, size))
	case x.paylen > 0:
		x.dst.setRegion(sink, uint64(x.rlen))
	}
}

// beginSend: the first segment takes a buffer; the others go on in it.
func (x *receiver) beginSend() {
	qp := x.qp
	v := &x.recv
	if !x.begun && qp.start.rtr == mpa.RTRSend && !qp.start.initiator && x.paylen == 0 && x.ctrl.Last() {
		x.rtrSend = true // the ready-to-receive message is not for the ULP
		return
	}
	if uint64(x.unt.MO) != v.got {
		x.fail(wire.CauseMO, fmt.Sprintf("Send at offset %d, expected %d", x.unt.MO, v.got))
		return
	}
	if !v.active && !x.takeRecv() {
		x.fail(wire.CauseNoBuffer, "Send without a receive buffer")
		return
	}
	if uint64(x.paylen) > v.buf.Size-v.got {
		x.fail(wire.CauseTooLong, fmt.Sprintf("Send of more than the %d bytes of the receive buffer", v.buf.Size))
		return
	}
	if v.status != verbs.StatusSuccess {
		x.dst = rxDest{kind: destScrap}
		return
	}
	x.dst = rxDest{kind: destRecv, off: v.got}
	x.dst.cur.Set(v.buf.Segs)
	x.dst.cur.Skip(int(v.got))
}

// takeRecv starts a message that consumes a receive buffer.
func (x *receiver) takeRecv() bool {
	qp := x.qp
	v := &x.recv
	if !qp.TakeRecv(&v.buf) {
		return false
	}
	v.active, v.got, v.status = true, 0, verbs.StatusSuccess
	for i, k := range v.buf.LKeys {
		if k != mem.LocalKey && !qp.checkLKey(k, v.buf.Segs[i], true) {
			v.status = verbs.StatusLocalProtection
			x.fail(wire.CauseDDPLocal, "the receive buffer lies outside the memory region of its key")
		}
	}
	return true
}
