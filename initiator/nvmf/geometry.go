package nvmf

import (
	"fmt"
	"math/bits"

	"softiser/blockdev"
	"softiser/internal/nvme"
)

// geometry is what a namespace's commands depend on. It is immutable; a look at the
// namespace may make a new one.
type geometry struct {
	info       blockdev.Info
	shift      uint8 // log2 of the block
	maxIO      int64 // longest Read or Write, bytes
	maxDiscard int64 // longest range of Dataset Management; 0: none
	maxZeroes  int64 // longest Write Zeroes; 0: none, zeroes are written
	maxVerify  int64 // longest Verify; 0: none
	maxCompare int64 // longest fused Compare and Write; 0: none
	deallocate bool  // Write Zeroes may deallocate, and deallocated blocks read as zeroes
}

// geometry computes it from what the controller says of a namespace.
func (a *Association) geometry(d *nvme.Namespace) (*geometry, error) {
	c := a.controller()
	bs, err := d.BlockSize()
	if err != nil {
		return nil, err
	}
	shift := nvme.Shift(bs)
	if d.Size > 1<<62>>shift {
		return nil, fmt.Errorf("nvmf: %d blocks of %d bytes", d.Size, bs)
	}
	block := int64(bs)
	g := &geometry{shift: shift, maxIO: min(int64(a.cfg.MaxTransfer), c.pages(c.ident.MDTS))}
	if len(a.io) > 0 {
		if tr, _ := a.io[0].connection(); tr != nil {
			g.maxIO = min(g.maxIO, int64(tr.MaxTransfer()))
		}
	}
	g.maxIO = wholeBlocks(g.maxIO, block)
	g.info = blockdev.Info{
		Size: int64(d.Size) << shift, BlockSize: bs, PhysBlockSize: bs, Backend: "nvme",
		ReadOnly:   d.NSATTR&nvme.NamespaceProtected != 0,
		WriteCache: c.ident.VWC&nvme.CachePresent != 0,
		Thin:       d.NSFEAT&nvme.FeatThin != 0,
	}
	if d.NSFEAT&nvme.FeatGranularity != 0 {
		if p := int64(d.NPWG) + 1; bits.OnesCount64(uint64(p)) == 1 {
			g.info.PhysBlockSize = int(p * block)
		}
		g.info.DiscardAlign = (int(d.NPDG) + 1) * bs
	}
	g.offer(c, d)
	return g, nil
}

// wholeBlocks is how many bytes a command covers that may cover n: whole blocks, 65536 at most.
func wholeBlocks(n, block int64) int64 { return max(min(n, 65536*block)/block*block, block) }

// offer enters which optional commands there are, and how much one covers. g.maxIO is known.
func (g *geometry) offer(c *controller, d *nvme.Namespace) {
	block := int64(g.info.BlockSize)
	has := func(bit uint16) bool { return c.ident.ONCS&bit != 0 }
	if has(nvme.HasDSM) {
		g.info.Discard = true
		g.info.ZeroesOnTrim = d.DLFEAT&7 == nvme.DeallocatedZeroes
		most := uint64(1 << 30 >> g.shift)
		for _, l := range []uint64{uint64(c.limits.DSMRangeBlocks), c.limits.DSMBlocks} { // ours have one range
			if l > 0 {
				most = min(most, l)
			}
		}
		g.maxDiscard = int64(most) << g.shift
	}
	if has(nvme.HasWriteZeroes) {
		g.maxZeroes = c.pages(c.limits.WriteZeroesSize)
		if c.limits.WriteZeroesSize == 0 {
			g.maxZeroes = c.pages(c.ident.MDTS) // controllers before NVMe 2.0 mean this one
		}
		g.maxZeroes = wholeBlocks(g.maxZeroes, block)
		g.deallocate = d.DLFEAT&nvme.ZeroesDeallocate != 0 && d.DLFEAT&7 == nvme.DeallocatedZeroes
	}
	if has(nvme.HasVerify) {
		g.maxVerify = wholeBlocks(c.pages(c.limits.VerifySize), block)
	}
	if has(nvme.HasCompare) && c.ident.FUSES&nvme.FusesCompareWrite != 0 {
		// The pair is atomic as far as the compare and write unit goes.
		unit := int64(c.ident.ACWU) + 1
		if d.NSFEAT&nvme.FeatOwnAtomics != 0 {
			unit = int64(d.NACWU) + 1
		}
		g.maxCompare = min(unit*block, g.maxIO)
	}
}

// pages is a limit that the controller gives as a power of two of its smallest page, bytes.
func (c *controller) pages(log uint8) int64 {
	if log == 0 || log > 40 {
		return 1 << 62 // no limit
	}
	return 1 << (c.cap.MinPage() + uint(log))
}
