package iwarp

import (
	"fmt"

	"softiser/rdma/internal/mem"
	"softiser/rdma/internal/verbs"
	"softiser/rdma/internal/wire"
)

// rdmapOp is what the receiver does with a message type; how it looks on the wire is
// in wire.Ops.
type rdmapOp struct {
	// begin checks the header of a segment, beyond what is checked for every type, and
	// finds the place for its payload. It calls fail for what is wrong.
	begin func(*QP)
	// done acts on a segment that has passed all checks; nil: there is nothing to do. An
	// error ends the connection.
	done func(*QP) error
	// pieces says that segments of an untagged message may begin anywhere in it.
	pieces bool
}

// rdmapOps is indexed by verbs.Opcode; it has a row for each type that wire.Ops knows.
var rdmapOps = [...]rdmapOp{
	wire.Write:        {begin: (*QP).beginWrite},
	wire.ReadRequest:  {begin: (*QP).beginReadRequest, done: (*QP).readRequestDone},
	wire.ReadResponse: {begin: (*QP).beginReadResponse, done: (*QP).readResponseDone},
	wire.Send:         {begin: (*QP).beginSend, done: (*QP).sendSegmentDone, pieces: true},
	wire.SendInv:      {begin: (*QP).beginSend, done: (*QP).sendSegmentDone, pieces: true},
	wire.SendSE:       {begin: (*QP).beginSend, done: (*QP).sendSegmentDone, pieces: true},
	wire.SendSEInv:    {begin: (*QP).beginSend, done: (*QP).sendSegmentDone, pieces: true},
	wire.Terminate:    {begin: (*QP).beginTerminate, done: (*QP).terminateDone},
	wire.Immediate:    {begin: (*QP).beginImmediate, done: (*QP).immediateDone},
	wire.ImmediateSE:  {begin: (*QP).beginImmediate, done: (*QP).immediateDone},
	wire.AtomicReq:    {begin: (*QP).beginAtomic, done: (*QP).atomicDone},
	wire.AtomicResp:   {begin: (*QP).beginAtomicResponse, done: (*QP).atomicResponseDone},
}

// opZeroFPDU stands for an FPDU without a ULPDU.
const opZeroFPDU wire.Opcode = 0xff

// ext is the RDMAP header behind the DDP header of an untagged segment.
func (x *rxState) ext() []byte { return x.hdr[wire.LenField+wire.UntaggedLen:] }

// beginReadRequest: the peer may read what it asks for (RFC 5040 §5.2.1). Nothing is
// checked where it asks for nothing.
func (qp *QP) beginReadRequest() {
	x := &qp.rx
	var h wire.ReadReq
	h.Parse(x.ext())
	if h.Size == 0 {
		return
	}
	r, _, f := qp.find(h.SrcSTag, h.SrcTO, uint64(h.Size), mem.RemoteRead)
	if f != mem.None {
		x.fail(faultCauses[f].rdmap, fmt.Sprintf("RDMA Read of %d bytes from STag %#08x offset %#x", h.Size, h.SrcSTag, h.SrcTO))
		return
	}
	r.Release()
}

// beginTerminate: the message is read as payload.
func (qp *QP) beginTerminate() {
	x := &qp.rx
	x.dst = rxDest{kind: destTerm}
	x.nterm = 0
}

// beginAtomic: Atomic Request (RFC 7306 §5).
func (qp *QP) beginAtomic() {
	x := &qp.rx
	var h wire.Atomic
	h.Parse(x.ext())
	if h.Op != wire.FetchAdd && h.Op != wire.CmpSwap {
		x.fail(wire.CauseOpcode, fmt.Sprintf("atomic operation %d", h.Op))
		return
	}
	if h.TO%8 != 0 {
		x.fail(wire.CauseStreamCatastroph, fmt.Sprintf("atomic operation on offset %#x, which is not a multiple of 8", h.TO))
		return
	}
	r, _, f := qp.find(h.STag, h.TO, 8, mem.RemoteAtomic)
	if f != mem.None {
		x.fail(faultCauses[f].rdmap, fmt.Sprintf("atomic operation on STag %#08x offset %#x", h.STag, h.TO))
		return
	}
	r.Release()
}

// beginAtomicResponse: it must answer the oldest request.
func (qp *QP) beginAtomicResponse() {
	x := &qp.rx
	var h wire.AtomicReply
	h.Parse(x.ext())
	qp.Mu.Lock()
	defer qp.Mu.Unlock()
	o := qp.oldestLocked()
	if o == nil || o.e.Op == verbs.OpRead || o.msn != h.ID {
		x.fail(wire.CauseOpcode, "Atomic Response that was not asked for")
	}
}

// beginImmediate: Immediate Data takes a receive buffer, though it puts nothing there.
func (qp *QP) beginImmediate() {
	x := &qp.rx
	if x.recv.active {
		x.fail(wire.CauseMSNRange, "Immediate Data inside a Send")
		return
	}
	if !qp.takeRecv() {
		x.fail(wire.CauseNoBuffer, "Immediate Data without a receive buffer")
	}
}
