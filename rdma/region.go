package rdma

import (
	"sync"
	"sync/atomic"
	"unsafe"

	"softiser/rdma/internal/wire"
)

// Access says what may be done with memory.
type Access uint8

// Access rights. Local reading is always allowed.
const (
	AccessLocalWrite Access = 1 << iota
	AccessRemoteRead
	AccessRemoteWrite
	AccessRemoteAtomic
	// AccessZeroBased makes the tagged offset of the first byte 0 instead of its
	// virtual address.
	AccessZeroBased
	// AccessScratch says that what the memory holds is undefined until the window
	// is invalidated: on their way, other bytes that the peer sent may pass through
	// it. It lets the engine take many payloads in one system call, see rx_guess.go.
	// It goes with AccessRemoteWrite on windows.
	AccessScratch

	accessSink // of a Read or atomic of our own; not open to RDMA Writes
)

// region is memory behind an STag: a memory region, a window, or the sink of an
// RDMA Read.
//
// The engine holds mu shared while a system call places bytes into the memory
// or while it copies there; revoking holds it exclusively. So when invalidate
// returns, nothing is placed there any more, and what the revoker waited for was
// at most one non-blocking system call. Sending by reference (RDMA Read
// Responses) is covered by QP.txIO instead, see revoke.
//
// Lock order: QP.sqMu, region.mu, then lendList.mu or Device.atomicMu, which are the
// leaves; QP.txIO is taken with none of them. Who holds lendList.mu, or a region
// already, gets at another region by trying only: whoever revokes that one holds it
// and may be waiting for the list, or for the region that is held.
type region struct {
	dev   *Device
	pd    *PD
	index uint32
	invOK bool // the peer may invalidate it by Send with Invalidate

	mu      sync.RWMutex // guards what follows
	valid   bool
	discard bool // placements go to scratch (QP.DiscardRead)
	stag    uint32
	gen     uint64 // counts what the region has been aimed at: a key comes again after a while
	qp      *QP    // only this queue pair may use it; nil: any of the domain
	access  Access
	base    uint64 // tagged offset of the first byte
	size    uint64
	segs    [][]byte
	one     [1][]byte // backing of segs for a single piece

	lendLink // place in lendList, guarded by its mutex

	faults atomic.Uint64 // placements that failed because the memory cannot be touched
}

func addrOf(p []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(p)))) }

// setLocked aims r at segs. The slice of pieces is copied.
func (r *region) setLocked(segs [][]byte, a Access) {
	r.gen++
	r.segs = append(r.segs[:0], segs...)
	r.size = 0
	for _, s := range segs {
		r.size += uint64(len(s))
	}
	r.access = a
	r.base = 0
	if a&AccessZeroBased == 0 && len(segs) > 0 {
		r.base = addrOf(segs[0])
	}
	r.discard = false
}

// dropLocked forgets the memory, so that the collector may have it.
func (r *region) dropLocked() {
	r.takeBackLocked()
	clear(r.segs)
	r.segs = r.segs[:0]
	r.size, r.access, r.qp = 0, 0, nil
	r.valid = false
}

// check is the only gate to memory from the wire: the region of an STag must be
// valid, belong to the queue pair, allow what is asked, and hold [to, to+n).
// n must not be 0: zero-length operations check nothing (RFC 5040 §5.2). The
// result is the offset into the region, or the cause for a Terminate in terms of
// RDMAP (RFC 5040 §4.8); taggedCause translates it for DDP.
//
// Preconditions: r.mu is held, shared at least.
func (r *region) check(qp *QP, stag uint32, to uint64, n uint64, want Access) (off uint64, c wire.Cause) {
	switch {
	case !r.valid || r.stag != stag:
		return 0, wire.CauseRemoteSTag
	case r.pd != qp.pd || (r.qp != nil && r.qp != qp):
		return 0, wire.CauseRemoteStream
	case r.access&want != want:
		return 0, wire.CauseRemoteAccess
	case to+n < to:
		return 0, wire.CauseRemoteWrap
	case to < r.base:
		return 0, wire.CauseRemoteBounds
	}
	off = to - r.base
	if off > r.size || n > r.size-off {
		return 0, wire.CauseRemoteBounds
	}
	return off, causeNone
}

// causeNone is not a code of any RFC.
const causeNone wire.Cause = 0xffff

// taggedCause turns a cause of check into what DDP reports for a tagged segment
// (RFC 5041 §6.2). DDP has no code for missing rights: to the peer, memory that
// it may not write does not exist.
func taggedCause(c wire.Cause) wire.Cause {
	switch c {
	case wire.CauseRemoteBounds:
		return wire.CauseBounds
	case wire.CauseRemoteStream:
		return wire.CauseStream
	case wire.CauseRemoteWrap:
		return wire.CauseWrap
	}
	return wire.CauseSTag
}

// find is lookup and check for one access; on success r.mu is held shared.
func (qp *QP) find(stag uint32, to, n uint64, want Access) (*region, uint64, wire.Cause) {
	r := qp.dev.tab.lookup(stag)
	if r == nil {
		return nil, 0, wire.CauseRemoteSTag
	}
	r.mu.RLock()
	off, c := r.check(qp, stag, to, n, want)
	if c != causeNone {
		r.mu.RUnlock()
		return nil, 0, c
	}
	return r, off, causeNone
}

// revoke makes r unusable, waits until nothing touches its memory, and forgets
// the memory. A Read Response that is half sent from it ends its connection: the
// peer was promised bytes that can no longer be read.
func (r *region) revoke() {
	r.mu.Lock()
	if !r.valid {
		r.mu.Unlock()
		return
	}
	qp := r.qp
	readable := r.access&AccessRemoteRead != 0
	r.dropLocked()
	r.mu.Unlock()
	if !readable {
		return
	}
	if qp != nil {
		qp.poisonTx(r)
		return
	}
	for _, qp := range r.dev.pairs(r.pd) {
		qp.poisonTx(r)
	}
}

// setDiscard makes further placements go to scratch. It waits for one in progress.
func (r *region) setDiscard() {
	r.mu.Lock()
	r.discard = true
	r.mu.Unlock()
}

// faulted counts a placement that failed, for the owner of the memory at which r was
// aimed as gen tells. told is false when r has been revoked since: whoever did so
// waits for no data. shared says that r belongs to no queue pair.
func (r *region) faulted(gen uint64) (told, shared bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if !r.valid || r.gen != gen {
		return false, false
	}
	r.faults.Add(1)
	return true, r.qp == nil
}

// matches reports whether stag names r for qp, as local and remote invalidation
// require.
func (r *region) matches(qp *QP, stag uint32) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.valid && r.stag == stag && r.pd == qp.pd && (r.qp == nil || r.qp == qp)
}

func (d *Device) pairs(pd *PD) []*QP {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []*QP
	for qp := range d.qps {
		if qp.pd == pd {
			out = append(out, qp)
		}
	}
	return out
}
