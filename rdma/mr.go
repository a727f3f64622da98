package rdma

import (
	"fmt"
	"math"
)

// MR is a memory region: an STag over one piece of memory. Registration takes
// constant time and neither touches nor pins the memory, so that a mapping of
// any size can be registered.
type MR struct {
	r   region
	mem []byte // guarded by r.mu
}

// RegMR registers mem, which may be Go memory or a mapping. mem must stay what
// it is (mapped, not moved) until Dereg.
func (pd *PD) RegMR(mem []byte, a Access) (*MR, error) {
	mr, err := pd.allocMR()
	if err != nil {
		return nil, err
	}
	if err := checkAccess(a, uint64(len(mem))); err != nil {
		mr.free()
		return nil, err
	}
	mr.r.mu.Lock()
	mr.aim(mem, a)
	mr.r.mu.Unlock()
	return mr, nil
}

// AllocMR makes a region without memory, for fast registration by OpRegMR. The
// peer may invalidate such a region by Send with Invalidate.
func (pd *PD) AllocMR() (*MR, error) {
	mr, err := pd.allocMR()
	if err != nil {
		return nil, err
	}
	mr.r.invOK = true
	return mr, nil
}

func (pd *PD) allocMR() (*MR, error) {
	if pd.gone.Load() {
		return nil, fmt.Errorf("%w: protection domain", ErrClosed)
	}
	mr := &MR{r: region{dev: pd.dev, pd: pd}}
	if err := pd.dev.tab.insert(&mr.r); err != nil {
		return nil, err
	}
	pd.use.Add(1)
	return mr, nil
}

func checkAccess(a Access, n uint64) error {
	if a&(AccessRemoteWrite|AccessRemoteAtomic) != 0 && a&AccessLocalWrite == 0 {
		return invalid("remote write or atomic access without local write access")
	}
	if n > math.MaxInt64 {
		return invalid("a region of %d bytes", n)
	}
	return nil
}

// aim points the region at mem. Preconditions: r.mu is held.
func (mr *MR) aim(mem []byte, a Access) {
	mr.mem = mem
	mr.r.one[0] = mem
	if mr.r.segs == nil {
		mr.r.segs = mr.r.one[:0]
	}
	mr.r.setLocked([][]byte{mem}, a)
	mr.r.valid = true
}

// LKey names the region in SGEs of this end.
func (mr *MR) LKey() uint32 { return mr.RKey() }

// RKey is the STag that a peer uses. It changes with Rereg and OpRegMR.
func (mr *MR) RKey() uint32 {
	mr.r.mu.RLock()
	defer mr.r.mu.RUnlock()
	return mr.r.stag
}

// Addr is the tagged offset of the first byte.
func (mr *MR) Addr() uint64 {
	mr.r.mu.RLock()
	defer mr.r.mu.RUnlock()
	return mr.r.base
}

// Len is the length of the region in bytes.
func (mr *MR) Len() int { return len(mr.Mem()) }

// Mem is the registered memory.
func (mr *MR) Mem() []byte {
	mr.r.mu.RLock()
	defer mr.r.mu.RUnlock()
	return mr.mem
}

// Faults counts placements from the wire that failed because the memory could
// not be touched.
func (mr *MR) Faults() uint64 { return mr.r.faults.Load() }

// Rereg aims the region at other memory with other rights, under a new key; the
// old STag is dead at once. When it returns, the old memory is no longer touched.
func (mr *MR) Rereg(mem []byte, a Access) error {
	if err := checkAccess(a, uint64(len(mem))); err != nil {
		return err
	}
	mr.r.revoke()
	mr.r.mu.Lock()
	mr.r.stag = freshKey(mr.r.stag)
	mr.aim(mem, a)
	mr.r.mu.Unlock()
	return nil
}

// Invalidate makes the STag unusable until Rereg or OpRegMR. When it returns,
// the memory is no longer touched on behalf of a peer.
func (mr *MR) Invalidate() { mr.r.revoke() }

// Dereg ends the region. Work requests that name it must have completed.
func (mr *MR) Dereg() error {
	mr.r.revoke()
	mr.free()
	return nil
}

func (mr *MR) free() {
	mr.r.mu.Lock()
	gone := mr.r.pd == nil
	pd := mr.r.pd
	mr.r.pd = nil
	mr.mem = nil
	mr.r.one[0] = nil
	mr.r.mu.Unlock()
	if !gone {
		mr.r.dev.tab.remove(&mr.r)
		pd.use.Add(-1)
	}
}
