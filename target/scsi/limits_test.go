package scsi

import (
	"testing"

	"softiser/internal/spc"
)

// TestLimitsAreKept: each limit of the block limits page is one that the command
// takes, and one more is refused.
func TestLimitsAreKept(t *testing.T) {
	for _, bs := range []int{512, 4096} {
		v := newVolume(t, 8<<30, bs) // sparse
		r := newRig(t, Config{}, LUConfig{Volume: v, MaxTransfer: 2 << 20})
		p, err := spc.VPDPayload(r.do(spc.AppendInquiryVPD(nil, spc.VPDBlockLimits, 255), nil, 255).good().data, spc.VPDBlockLimits)
		if err != nil {
			t.Fatal(err)
		}
		l, err := spc.ParseBlockLimits(p)
		if err != nil {
			t.Fatal(err)
		}
		data := make([]byte, 4<<20)
		unmap := func(rs ...spc.Range) *result {
			b := spc.AppendUnmapList(nil, rs)
			return r.do(spc.AppendUnmap(nil, uint16(len(b))), b, 0)
		}
		for _, c := range []struct {
			name  string
			limit int
			do    func(n int) *result
			asc   spc.ASC
		}{
			{"READ", int(l.MaxTransfer), func(n int) *result { return r.do(spc.AppendRead(nil, 0, uint32(n), false), nil, n*bs) }, spc.ASCInvalidFieldInCDB},
			{"WRITE", int(l.MaxTransfer), func(n int) *result { return r.do(spc.AppendWrite(nil, 0, uint32(n), false), data[:n*bs], 0) }, spc.ASCInvalidFieldInCDB},
			{"COMPARE AND WRITE", int(l.MaxCompareAndWrite), func(n int) *result {
				if n > 255 {
					return nil // has no room in the CDB
				}
				return r.do(spc.AppendCompareAndWrite(nil, 0, uint8(n), false), data[:2*n*bs], 0)
			}, spc.ASCInvalidFieldInCDB},
			{"WRITE SAME", int(l.MaxWriteSame), func(n int) *result {
				return r.do(spc.AppendWriteSame16(nil, 0, uint32(n), spc.FlagNDOB|spc.FlagUnmap), nil, 0)
			}, spc.ASCInvalidFieldInCDB},
			{"WRITE ATOMIC", int(l.MaxAtomic), func(n int) *result {
				return r.do(spc.AppendWriteAtomic16(nil, 0, uint16(n), false), data[:n*bs], 0)
			}, spc.ASCInvalidFieldInCDB},
			{"UNMAP, blocks", int(l.MaxUnmapBlocks), func(n int) *result { return unmap(spc.Range{Blocks: uint32(n)}) }, spc.ASCInvalidFieldInParam},
			{"UNMAP, descriptors", int(l.MaxUnmapDescriptors), func(n int) *result { return unmap(make([]spc.Range, n)...) }, spc.ASCInvalidFieldInParam},
		} {
			if c.limit == 0 {
				t.Errorf("%s, blocks of %d: no limit is told", c.name, bs)
				continue
			}
			c.do(c.limit).good()
			if got := c.do(c.limit + 1); got != nil {
				got.illegal(c.asc)
			}
		}
		if !l.WSNonZero {
			t.Error("WSNZ is clear, but WRITE SAME of 0 blocks is refused")
		}
	}
}
