package iwarp

import (
	"softiser/rdma/internal/mem"
	"softiser/rdma/internal/wire"
)

// The way to memory leads through package mem. This file is where its neutral faults
// become what iWARP tells a peer.
//
// Lock order: QP.Mu, a region (Hold, or whatever changes it), then lendList.mu or
// Device.Atomics, which are the leaves; transmitter.io is taken with none of them. Who holds
// lendList.mu, or a region already, gets at another region by TryHold only: whoever
// revokes that one has it locked and may be waiting for the list, or for the region
// that is held.

// causeNone is not a code of any RFC.
const causeNone wire.Cause = 0xffff

// faultCauses are the causes in terms of RDMAP (RFC 5040 §4.8), and in those of DDP
// for a tagged segment (RFC 5041 §7.2). DDP has no code for missing rights: to the
// peer, memory that it may not write does not exist.
var faultCauses = [...]struct{ rdmap, tagged wire.Cause }{
	mem.None:     {causeNone, causeNone},
	mem.NoRegion: {wire.CauseRemoteSTag, wire.CauseSTag},
	mem.Foreign:  {wire.CauseRemoteStream, wire.CauseStream},
	mem.Denied:   {wire.CauseRemoteAccess, wire.CauseSTag},
	mem.Wrapped:  {wire.CauseRemoteWrap, wire.CauseWrap},
	mem.Outside:  {wire.CauseRemoteBounds, wire.CauseBounds},
}

// find is the region that a peer's access is for; without a fault it is held.
func (qp *QP) find(stag uint32, to, n uint64, want mem.Access) (*mem.Region, uint64, mem.Fault) {
	r := qp.Dev.Table.Lookup(stag)
	if r == nil {
		return nil, 0, mem.NoRegion
	}
	r.Hold()
	off, f := r.Check(qp.PD, &qp.Mem, stag, to, n, want)
	if f != mem.None {
		r.Release()
		return nil, 0, f
	}
	return r, off, mem.None
}

// checkLKey reports whether p lies inside the region that lkey names.
func (qp *QP) checkLKey(lkey uint32, p []byte, write bool) bool {
	return mem.Within(p, qp.ownMemory(lkey, write))
}

// ownMemory is the memory of the region that lkey names; nil when it names none that may be used.
func (qp *QP) ownMemory(lkey uint32, write bool) []byte {
	if r := qp.Dev.Table.Lookup(lkey); r != nil {
		return r.Own(qp.PD, lkey, write)
	}
	return nil
}
