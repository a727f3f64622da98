package message

import (
	"errors"

	"softiser/rdma/internal/mem"
	"softiser/rdma/internal/roce/packet"
	"softiser/rdma/internal/verbs"
)

// MemoryFault is what a peer is told of any fault of package mem: IBA has one code for
// all of them (vol. 1 §9.7.5.2.4, table 46).
const MemoryFault = packet.NAKRemoteAccess

// Fault is why a packet was not executed, or is the last one that may be.
type Fault struct {
	// Syndrome is what the requester of a reliable connection is told. ACK stands for a
	// packet that has been executed, after which the connection ends all the same.
	Syndrome packet.Syndrome
	// Status is for the completion of the receive buffer that the message has taken;
	// StatusSuccess where it has taken none, or the buffer has completed.
	Status verbs.Status
	Reason string
}

// NoBuffer says that a packet needs a receive buffer, and there is none. Nothing was
// done: it may come again.
var NoBuffer = &Fault{Reason: "no receive buffer"}

// Find is the region that a peer's access is for; without a fault it is held.
func Find(qp *verbs.QP, rkey uint32, va, n uint64, want mem.Access) (*mem.Region, uint64, mem.Fault) {
	reg := qp.Dev.Table.Lookup(rkey)
	if reg == nil {
		return nil, 0, mem.NoRegion
	}
	reg.Hold()
	off, f := reg.Check(qp.PD, &qp.Mem, rkey, va, n, want)
	if f != mem.None {
		reg.Release()
		return nil, 0, f
	}
	return reg, off, mem.None
}

// Allowed is Find for a whole message that begins: whatever its packets do later, the
// first one is refused if any of them would be.
func Allowed(qp *verbs.QP, h *packet.RETH, want mem.Access) mem.Fault {
	if h.Len == 0 {
		return mem.None // neither key nor address count then (§9.7.4.1.5)
	}
	reg, _, f := Find(qp, h.RKey, h.VA, uint64(h.Len), want)
	if f == mem.None {
		reg.Release()
	}
	return f
}

// ErrLKey is why a connection ends whose next request cannot be sent.
var ErrLKey = errors.New("rdma: an SGE lies outside the memory region of its key")

// LocalKeys says whether all pieces lie in the regions that their keys name, and may be
// written to if that is wanted.
func LocalKeys(qp *verbs.QP, lkeys []uint32, segs [][]byte, write bool) bool {
	for i, k := range lkeys {
		if k == mem.LocalKey {
			continue
		}
		if reg := qp.Dev.Table.Lookup(k); reg == nil || !reg.Local(qp.PD, k, segs[i], write) {
			return false
		}
	}
	return true
}
