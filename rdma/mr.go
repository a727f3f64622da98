package rdma

import (
	"errors"
	"fmt"
	"math"
	"sync/atomic"

	"softiser/rdma/internal/mem"
)

// MR is a memory region: an STag over one piece of memory. Registration takes
// constant time and neither touches nor pins the memory, so that a mapping of
// any size can be registered.
type MR struct {
	pd   *PD
	m    mem.Memory
	gone atomic.Bool
}

// RegMR registers p, which may be Go memory or a mapping. It must stay what
// it is (mapped, not moved) until Dereg.
func (pd *PD) RegMR(p []byte, a Access) (*MR, error) {
	mr, err := pd.allocMR()
	if err != nil {
		return nil, err
	}
	if err := checkAccess(a, uint64(len(p))); err != nil {
		mr.free()
		return nil, err
	}
	mr.m.Aim(p, mem.Access(a), mr.m.State().STag)
	return mr, nil
}

// AllocMR makes a region without memory, for fast registration by OpRegMR. The
// peer may invalidate such a region by Send with Invalidate.
func (pd *PD) AllocMR() (*MR, error) {
	mr, err := pd.allocMR()
	if err != nil {
		return nil, err
	}
	mr.m.Remote = true
	return mr, nil
}

func (pd *PD) allocMR() (*MR, error) {
	mr := &MR{pd: pd}
	if err := pd.insert(&mr.m.Region); err != nil {
		return nil, err
	}
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

// LKey names the region in SGEs of this end.
func (mr *MR) LKey() uint32 { return mr.RKey() }

// RKey is the STag that a peer uses. It changes with OpRegMR.
func (mr *MR) RKey() uint32 { return mr.m.State().STag }

// Addr is the tagged offset of the first byte.
func (mr *MR) Addr() uint64 { return mr.m.State().Base }

// Len is the length of the region in bytes.
func (mr *MR) Len() int { return len(mr.Mem()) }

// Mem is the registered memory.
func (mr *MR) Mem() []byte { return mr.m.Bytes() }

// Faults counts placements from the wire that failed because the memory could
// not be touched.
func (mr *MR) Faults() uint64 { return mr.m.Faults() }

// Invalidate makes the STag unusable until OpRegMR. When it returns,
// the memory is no longer touched on behalf of a peer.
func (mr *MR) Invalidate() { mr.m.Revoke() }

// Dereg ends the region. Work requests that name it must have completed.
func (mr *MR) Dereg() error {
	mr.m.Revoke()
	mr.free()
	return nil
}

func (mr *MR) free() {
	mr.m.Forget()
	if !mr.gone.Swap(true) {
		mr.pd.remove(&mr.m.Region)
	}
}

// insert makes r a region of the domain, with an STag.
func (pd *PD) insert(r *mem.Region) error {
	if !pd.life.use() {
		return errGone("protection domain")
	}
	r.Init(&pd.mem)
	err := pd.dev.shared.Table.Insert(r)
	if err == nil {
		return nil
	}
	pd.life.release()
	if errors.Is(err, mem.ErrFull) {
		return fmt.Errorf("%w: %d memory regions and windows", ErrLimit, pd.dev.cfg.MaxMR)
	}
	return fmt.Errorf("rdma: %w", err)
}

// remove undoes insert.
func (pd *PD) remove(r *mem.Region) {
	pd.dev.shared.Table.Remove(r)
	pd.life.release()
}
