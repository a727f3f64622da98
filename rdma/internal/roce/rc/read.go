package rc

import (
	"fmt"
	"runtime/debug"
	"sync/atomic"
	"unsafe"

	"softiser/internal/memfault"
	"softiser/rdma/internal/mem"
	"softiser/rdma/internal/roce/message"
	"softiser/rdma/internal/roce/packet"
)

// packets is how many PSNs n bytes take.
func (r *Responder) packets(n uint32) int { return max(1, (int(n)+r.mtu-1)/r.mtu) }

// outstanding is how many READs and atomics have not been answered. One that has come again
// is none: the peer may have got the first answer meanwhile, and ask for more.
func (r *Responder) outstanding() (n int) {
	for i := range r.answers.n {
		if a := r.answers.at(i); a.op != packet.Acknowledge && !a.dup {
			n++
		}
	}
	return n
}

// read queues the answer to an RDMA READ, which takes n PSNs.
func (r *Responder) read(p *packet.Packet) (ok bool, n int) {
	switch {
	case r.outstanding() >= r.cfg.Resources:
		r.refuse(packet.NAKInvalidRequest, p, fmt.Sprintf("more than %d READs and atomics outstanding", r.cfg.Resources))
		return false, 0
	case p.RETH.Len > packet.MaxMessage:
		r.refuse(packet.NAKInvalidRequest, p, fmt.Sprintf("a READ of %d bytes", p.RETH.Len))
		return false, 0
	case !r.readable(p):
		return false, 0
	}
	n = r.packets(p.RETH.Len)
	r.msn = (r.msn + 1) & packet.PSNMask
	r.resources.remember(resource{psn: p.PSN, n: n, reth: p.RETH})
	r.answers.add(answer{op: packet.ReadResponseOnly, psn: p.PSN, end: p.PSN.Add(n), msn: r.msn, reth: p.RETH})
	return true, n
}

// atomic does an atomic operation and queues its answer (§9.4.5). All atomic operations
// of a device are serialized, and are atomic against sync/atomic operations of this
// process on the same word.
func (r *Responder) atomic(p *packet.Packet) bool {
	h := &p.AtomicETH
	switch {
	case r.outstanding() >= r.cfg.Resources:
		r.refuse(packet.NAKInvalidRequest, p, fmt.Sprintf("more than %d READs and atomics outstanding", r.cfg.Resources))
		return false
	case h.VA%8 != 0:
		r.refuse(packet.NAKInvalidRequest, p, fmt.Sprintf("address %#x of an atomic operation is no multiple of 8", h.VA))
		return false
	}
	reg, off, f := r.find(h.RKey, h.VA, 8, mem.RemoteAtomic)
	if f != mem.None {
		r.refuse(message.MemoryFault, p, fmt.Sprintf("atomic operation at %#x of key %#08x: %v", h.VA, h.RKey, f))
		return false
	}
	var cur mem.Cursor
	cur.Set(reg.Pieces())
	cur.Skip(int(off))
	word := cur.Next(8)
	// VA is the address that the region was registered under; whether the processor can do it
	// depends on where the memory is.
	ok := len(word) == 8 && mem.AddrOf(word)%8 == 0
	var orig uint64
	if ok {
		r.qp.Dev.Atomics.Lock()
		orig, ok = apply((*uint64)(unsafe.Pointer(unsafe.SliceData(word))), p.Op, h)
		r.qp.Dev.Atomics.Unlock()
	}
	reg.Release()
	if !ok {
		r.refuse(packet.NAKRemoteOperational, p, "the memory of an atomic operation is not aligned or cannot be touched")
		return false
	}
	r.msn = (r.msn + 1) & packet.PSNMask
	r.resources.remember(resource{psn: p.PSN, n: 1, orig: orig, atom: true})
	r.answers.add(answer{op: packet.AtomicAcknowledge, psn: p.PSN, end: p.PSN.Add(1), msn: r.msn, verd: packet.ACK, orig: orig})
	return true
}

// apply does the operation on a word in the byte order of this machine.
func apply(word *uint64, op packet.Opcode, h *packet.AtomicETH) (orig uint64, ok bool) {
	defer memfault.Guard(debug.SetPanicOnFault(true), &ok)
	for {
		orig = atomic.LoadUint64(word)
		to := orig + h.SwapOrAdd
		if op == packet.CompareSwap {
			if to = h.SwapOrAdd; orig != h.Compare {
				return orig, true
			}
		}
		if atomic.CompareAndSwapUint64(word, orig, to) {
			return orig, true
		}
	}
}
