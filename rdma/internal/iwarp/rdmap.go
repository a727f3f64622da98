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
	begin func(*receiver)
	// done acts on a segment that has passed all checks; nil: there is nothing to do. An
	// error ends the connection.
	done func(*receiver) error
	// pieces says that segments of an untagged message may begin anywhere in it.
	pieces bool
}

// rdmapOps is indexed by wire.Opcode; it has a row for each type that wire.Ops knows.
var rdmapOps = [...]rdmapOp{
	wire.Write:        {begin: (*receiver).beginWrite},
	wire.ReadRequest:  {begin: (*receiver).beginReadRequest, done: (*receiver).readRequestDone},
	wire.ReadResponse: {begin: (*receiver).beginReadResponse, done: (*receiver).readResponseDone},
	wire.Send:         {begin: (*receiver).beginSend, done: (*receiver).sendSegmentDone, pieces: true},
	wire.SendInv:      {begin: (*receiver).beginSend, done: (*receiver).sendSegmentDone, pieces: true},
	wire.SendSE:       {begin: (*receiver).beginSend, done: (*receiver).sendSegmentDone, pieces: true},
	wire.SendSEInv:    {begin: (*receiver).beginSend, done: (*receiver).sendSegmentDone, pieces: true},
	wire.Terminate:    {begin: (*receiver).beginTerminate, done: (*receiver).terminateDone},
	wire.Immediate:    {begin: (*receiver).beginImmediate, done: (*receiver).immediateDone},
	wire.ImmediateSE:  {begin: (*receiver).beginImmediate, done: (*receiver).immediateDone},
	wire.AtomicReq:    {begin: (*receiver).beginAtomic, done: (*receiver).atomicDone},
	wire.AtomicResp:   {begin: (*receiver).beginAtomicResponse, done: (*receiver).atomicResponseDone},
}

// opZeroFPDU stands for an FPDU without a ULPDU.
const opZeroFPDU wire.Opcode = 0xff

// beginReadRequest: the peer may read what it asks for (RFC 5040 §5.2.1). Nothing is
// checked where it asks for nothing.
func (x *receiver) beginReadRequest() {
	qp := x.qp
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
func (x *receiver) beginTerminate() {
	x.dst = rxDest{kind: destTerm}
	x.term.n = 0
}

// beginAtomic: Atomic Request (RFC 7306 §5).
func (x *receiver) beginAtomic() {
	qp := x.qp
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
func (x *receiver) beginAtomicResponse() {
	qp := x.qp
	var h wire.AtomicReply
	h.Parse(x.ext())
	qp.Mu.Lock()
	defer qp.Mu.Unlock()
	o := qp.reads.oldestLocked()
	if o == nil || o.e.Op == verbs.OpRead || o.msn != h.ID {
		x.fail(wire.CauseOpcode, "Atomic Response that was not asked for")
	}
}

// beginImmediate: Immediate Data takes a receive buffer, though it puts nothing there.
func (x *receiver) beginImmediate() {
	if x.recv.active {
		x.fail(wire.CauseMSNRange, "Immediate Data inside a Send")
		return
	}
	if !x.takeRecv() {
		x.fail(wire.CauseNoBuffer, "Immediate Data without a receive buffer")
	}
}
