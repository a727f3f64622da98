package scsi

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"

	"softiser/internal/spc"

	"softiser/target/volume"
)

// TestCopyBounds: what an EXTENDED COPY may ask for is taken, one more is refused, before
// anything is copied.
func TestCopyBounds(t *testing.T) {
	r := newRig(t, Config{}, LUConfig{Volume: newSized(t, "a", 80<<20)}, LUConfig{LUN: 1, Volume: newSized(t, "b", 80<<20)},
		LUConfig{LUN: 2, Volume: newVolume(t, 1<<20, 4096)})
	n := r.nx[0]
	both := append(r.target(0), r.target(1)...)
	one := spc.CopySegment{Type: spc.CopyBlockToBlock, Src: 0, Dst: 1, Blocks: 1}
	segs := func(k int) (s []spc.CopySegment) {
		for range k {
			s = append(s, one)
		}
		return s
	}
	with := func(f func(s *spc.CopySegment)) []byte {
		s := one
		f(&s)
		return copyList(1, both, s)
	}
	edit := func(f func(b []byte)) []byte {
		b := copyList(1, both, one)
		f(b)
		return b
	}
	be := binary.BigEndian
	descriptor := func(f func(d []byte)) []byte { return edit(func(b []byte) { f(b[spc.CopyHeaderLen:]) }) }
	const none = spc.ASC(0)
	for _, c := range []struct {
		name string
		list []byte
		key  spc.Key
		asc  spc.ASC
	}{
		{"most segments", copyList(1, both, segs(maxCopySegments)...), 0, none},
		{"a segment too many", copyList(1, both, segs(maxCopySegments+1)...), spc.KeyIllegalRequest, spc.ASCCopyTooManySegments},
		{"most targets", copyList(1, bytes.Repeat(r.target(0), maxCopyTargets), one), 0, none},
		{"a target too many", copyList(1, bytes.Repeat(r.target(0), maxCopyTargets+1), one), spc.KeyIllegalRequest, spc.ASCCopyTooManyTargets},
		{"longest list", copyList(1, bytes.Repeat(r.target(0), maxCopyList/spc.CopyTargetLen)), spc.KeyIllegalRequest, spc.ASCCopyTooManyTargets},
		{"a longer list", copyList(1, bytes.Repeat(r.target(0), maxCopyList/spc.CopyTargetLen+1)), spc.KeyIllegalRequest, spc.ASCParameterListLength},
		{"a list of more than 64 KiB", make([]byte, 64<<10+1), spc.KeyIllegalRequest, spc.ASCParameterListLength},
		{"less than the header says", edit(func(b []byte) { be.PutUint32(b[8:], be.Uint32(b[8:])+1) }), spc.KeyIllegalRequest, spc.ASCParameterListLength},
		{"inline data", append(edit(func(b []byte) { be.PutUint32(b[12:], 8) }), make([]byte, 8)...), spc.KeyIllegalRequest, spc.ASCInlineDataLength},
		{"inline data that are not there", edit(func(b []byte) { be.PutUint32(b[12:], 8) }), spc.KeyIllegalRequest, spc.ASCParameterListLength},
		{"reserved use of the identifier", edit(func(b []byte) { b[1] = 1 << 3 }), spc.KeyIllegalRequest, spc.ASCInvalidFieldInParam},
		{"an identifier that is not used", edit(func(b []byte) { b[1] = 3 << 3 }), spc.KeyIllegalRequest, spc.ASCInvalidFieldInParam},
		{"no identifier", edit(func(b []byte) { b[0], b[1] = 0, 3<<3 }), 0, none},
		{"half a target", edit(func(b []byte) { be.PutUint16(b[2:], 40); be.PutUint32(b[8:], be.Uint32(b[8:])+24) }), spc.KeyIllegalRequest, spc.ASCParameterListLength},
		{"device type", descriptor(func(d []byte) { d[1] |= 1 }), spc.KeyIllegalRequest, spc.ASCInvalidFieldInParam},
		{"a designator that is too long", descriptor(func(d []byte) { d[7] = 21 }), spc.KeyIllegalRequest, spc.ASCInvalidFieldInParam},
		{"the longest designator", descriptor(func(d []byte) { d[7] = 20 }), spc.KeyCopyAborted, spc.ASCCopyTargetGone},
		{"block length", descriptor(func(d []byte) { d[30] = 0x10 }), spc.KeyIllegalRequest, spc.ASCInvalidFieldInParam},
		{"index of the source", with(func(s *spc.CopySegment) { s.Src = 2 }), spc.KeyCopyAborted, spc.ASCCopyTargetGone},
		{"index of the destination", with(func(s *spc.CopySegment) { s.Dst = 2 }), spc.KeyCopyAborted, spc.ASCCopyTargetGone},
		{"source behind the end", with(func(s *spc.CopySegment) { s.SrcLBA = 160 << 10 }), spc.KeyCopyAborted, spc.ASCUnreachableCopy},
		{"source far behind the end", with(func(s *spc.CopySegment) { s.SrcLBA = 1<<55 + 1 }), spc.KeyCopyAborted, spc.ASCUnreachableCopy},
		{"destination behind the end", with(func(s *spc.CopySegment) { s.DstLBA = 160 << 10 }), spc.KeyCopyAborted, spc.ASCUnreachableCopy},
		{"destination far behind the end", with(func(s *spc.CopySegment) { s.DstLBA = 1<<55 + 1 }), spc.KeyCopyAborted, spc.ASCUnreachableCopy},
		{"most bytes", with(func(s *spc.CopySegment) { s.Type, s.Bytes = spc.CopyBlockOffset, maxCopyBytes }), 0, none},
		{"a block too many", with(func(s *spc.CopySegment) { s.Type, s.Bytes = spc.CopyBlockOffset, maxCopyBytes+512 }), spc.KeyIllegalRequest, spc.ASCInvalidFieldInParam},
		{"a part of a block", with(func(s *spc.CopySegment) { s.Type, s.Bytes = spc.CopyBlockOffset, 513 }), spc.KeyIllegalRequest, spc.ASCInvalidFieldInParam},
		{"within a block of the source", with(func(s *spc.CopySegment) { s.Type, s.Bytes, s.SrcOff = spc.CopyBlockOffset, 512, 1 }), spc.KeyIllegalRequest, spc.ASCInvalidFieldInParam},
		{"within a block of the destination", with(func(s *spc.CopySegment) { s.Type, s.Bytes, s.DstOff = spc.CopyBlockOffset, 512, 1 }), spc.KeyIllegalRequest, spc.ASCInvalidFieldInParam},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := r.on(n, 0, xcopy(c.list), c.list, 0)
			got.t = t
			if c.key == 0 {
				got.good()
			} else {
				got.sense(c.key, c.asc)
			}
		})
	}
	// Reserved for somebody else, one after the other.
	reserve := func(lun uint16, sa byte, key, action uint64) {
		p := spc.PersistOut{Key: key, ActionKey: action}
		list := p.Append(nil)
		r.on(r.nx[1], lun, spc.AppendPersistOut(nil, sa, spc.PRExclusiveAccess, uint32(len(list))), list, 0).good()
	}
	for lun := range uint16(2) {
		reserve(lun, spc.SAProutRegister, 0, keyA)
		reserve(lun, spc.SAProutReserve, keyA, 0)
		list := copyList(1, both, one)
		r.on(n, 2, xcopy(list), list, 0).sense(spc.KeyCopyAborted, spc.ASCCopyTargetGone)
		if lun == 0 {
			p := spc.PopulateToken{Ranges: []spc.Range{{Blocks: 1}}}
			list = p.Append(nil)
			r.on(n, 0, tokenCDB(spc.SAPopulateToken, 1, list), list, 0).is(spc.StatusReservationConflict)
		}
		reserve(lun, spc.SAProutClear, keyA, 0)
		for _, x := range r.nx {
			r.on(x, lun, spc.AppendTestUnitReady(nil), nil, 0)
		}
	}
}

// TestTokenBounds is the same for POPULATE TOKEN and WRITE USING TOKEN.
func TestTokenBounds(t *testing.T) {
	const gib = maxTokenBytes >> 9
	r := newRig(t, Config{}, LUConfig{Volume: newSized(t, "a", 3<<30)}, LUConfig{LUN: 1, Volume: newVolume(t, 1<<20, 4096)},
		LUConfig{LUN: 2, Volume: newNamed(t, "c")})
	n := r.nx[0]
	populate := func(p spc.PopulateToken) *result {
		list := p.Append(nil)
		return r.on(n, 0, tokenCDB(spc.SAPopulateToken, 1, list), list, 0)
	}
	ranges := func(k int, blocks uint32) (rs []spc.Range) {
		for i := range k {
			rs = append(rs, spc.Range{LBA: uint64(i) * uint64(blocks), Blocks: blocks})
		}
		return rs
	}
	populate(spc.PopulateToken{Ranges: ranges(maxTokenRanges, 1)}).good()
	populate(spc.PopulateToken{Ranges: ranges(maxTokenRanges+1, 1)}).illegal(spc.ASCCopyTooManySegments)
	populate(spc.PopulateToken{}).illegal(spc.ASCCopyTooManySegments)
	populate(spc.PopulateToken{Ranges: ranges(2, gib/2)}).good()
	populate(spc.PopulateToken{Ranges: append(ranges(2, gib/2), spc.Range{Blocks: 1})}).illegal(spc.ASCInvalidFieldInParam)
	populate(spc.PopulateToken{Ranges: []spc.Range{{LBA: 6<<20 - 1, Blocks: 2}}}).illegal(spc.ASCLBAOutOfRange)
	populate(spc.PopulateToken{Ranges: []spc.Range{{LBA: 1<<55 + 1, Blocks: 1}}}).illegal(spc.ASCLBAOutOfRange)
	populate(spc.PopulateToken{TypeSet: true, Type: 0x00800000, Ranges: ranges(1, 1)}).illegal(spc.ASCInvalidFieldInParam)
	populate(spc.PopulateToken{TypeSet: true, Type: spc.RODAccessUponReference, Ranges: ranges(1, 1)}).good()
	r.on(n, 0, tokenCDB(spc.SAPopulateToken, 1, make([]byte, 15)), make([]byte, 15), 0).illegal(spc.ASCParameterListLength)
	long := make([]byte, 64<<10+1)
	r.on(n, 0, tokenCDB(spc.SAPopulateToken, 1, long), long, 0).illegal(spc.ASCParameterListLength)

	token := r.newToken(n, 0, spc.Range{Blocks: 8})
	use := func(lun uint16, offset uint64, rs ...spc.Range) *result {
		w := spc.WriteUsingToken{Token: token, Offset: offset, Ranges: rs}
		list := w.Append(nil)
		return r.on(n, lun, tokenCDB(spc.SAWriteUsingToken, 2, list), list, 0)
	}
	use(0, 0, spc.Range{LBA: 100, Blocks: 8}).good()
	use(0, 4, spc.Range{LBA: 100, Blocks: 4}).good()
	use(0, 0, spc.Range{LBA: 100, Blocks: 9}).illegal(spc.ASCInvalidFieldInParam)
	use(0, 4, spc.Range{LBA: 100, Blocks: 5}).illegal(spc.ASCInvalidFieldInParam)
	use(0, 1<<64-4, spc.Range{LBA: 100, Blocks: 8}).illegal(spc.ASCInvalidFieldInParam)
	if got := use(1, 0, spc.Range{Blocks: 1}).illegal(spc.ASCInvalidFieldInParam); !got.sd.FieldValid || got.sd.Field != 8 {
		t.Error("the field that is wrong is not told")
	}
	use(0, 0, ranges(maxTokenRanges+1, 0)...).illegal(spc.ASCCopyTooManySegments)
	use(0, 0, spc.Range{LBA: 6<<20 - 1, Blocks: 2}).illegal(spc.ASCLBAOutOfRange)

	// A token is no way around a reservation of the unit that it stands for.
	use(2, 0, spc.Range{Blocks: 8}).good()
	r.prout(r.nx[1], spc.SAProutRegister, 0, 0, keyA).good()
	r.prout(r.nx[1], spc.SAProutReserve, spc.PRExclusiveAccess, keyA, 0).good()
	use(2, 0, spc.Range{Blocks: 8}).illegal(spc.ASCInvalidTokenOp)
}

// TestCopyResultsAreTheInitiators: how a copy ended is told to the initiator port whose copy it
// was, under its own identifier, and so many are remembered.
func TestCopyResultsAreTheInitiators(t *testing.T) {
	r := newRig(t, Config{}, LUConfig{Volume: newNamed(t, "a")})
	a, b := r.nx[0], r.nx[1]
	zero := spc.RODToken{Type: spc.RODZero}
	write := func(n *Nexus, id uint32, blocks uint32) {
		t.Helper()
		w := spc.WriteUsingToken{Token: zero.Append(nil), Ranges: []spc.Range{{Blocks: blocks}}}
		list := w.Append(nil)
		r.on(n, 0, tokenCDB(spc.SAWriteUsingToken, id, list), list, 0).good()
	}
	ask := func(n *Nexus, id byte) *result {
		cdb := make([]byte, 16)
		cdb[0], cdb[1], cdb[5], cdb[12] = byte(spc.OpThirdPartyIn), spc.SARODTokenInfo, id, 4
		return r.on(n, 0, cdb, nil, 1024)
	}
	write(a, 7, 3)
	ask(b, 7).illegal(spc.ASCInvalidFieldInCDB)
	write(b, 7, 5)
	for n, want := range map[*Nexus]uint64{a: 3, b: 5} {
		if got := r.rodInfo(n, 0, 7).Transfer; got != want {
			t.Errorf("%s is told of %d blocks, want %d", n.client.ID.Initiator, got, want)
		}
	}
	for i := range keepCopyResults - 1 {
		write(b, uint32(100+i), 1)
	}
	ask(a, 7).illegal(spc.ASCInvalidFieldInCDB)
	if got := r.rodInfo(b, 0, 7).Transfer; got != 5 {
		t.Errorf("the second oldest is told as %d blocks", got)
	}
	if n := len(r.dev.lookup(0).copies.all); n != keepCopyResults {
		t.Errorf("%d results are kept, want %d", n, keepCopyResults)
	}
}

// TestListBounds: the lists of COMPARE AND WRITE, FORMAT UNIT and SANITIZE are as long as they
// may be, or refused.
func TestListBounds(t *testing.T) {
	for _, bs := range []int{512, 4096} {
		t.Run(fmt.Sprint(bs), func(t *testing.T) {
			r := newRig(t, Config{}, LUConfig{Volume: newVolume(t, 4<<20, bs)})
			most := min(255, volume.StageBytes/2/bs)
			compare := func(blocks, bytes int) *result {
				return r.do(spc.AppendCompareAndWrite(nil, 0, uint8(blocks), false), make([]byte, bytes), 0)
			}
			compare(most, 2*most*bs).good()
			if most < 255 {
				compare(most+1, 2*(most+1)*bs).illegal(spc.ASCInvalidFieldInCDB)
			}
			compare(1, 2*bs-1).illegal(spc.ASCInvalidFieldInCDB)
			compare(1, 3*bs).illegal(spc.ASCInvalidFieldInCDB)

			r.formatList(spc.FormatList{Flags: spc.FormatFOV | spc.FormatIP, PatternType: 1, Pattern: make([]byte, bs)}, true).good()
			r.formatList(spc.FormatList{Flags: spc.FormatFOV | spc.FormatIP, PatternType: 1, Pattern: make([]byte, bs+1)}, false).illegal(spc.ASCInvalidFieldInParam)
			r.formatList(spc.FormatList{Flags: spc.FormatFOV | spc.FormatIP, PatternType: 1, Pattern: make([]byte, bs+1)}, true).illegal(spc.ASCParameterListLength)
			r.formatList(spc.FormatList{Protection: 1}, false).illegal(spc.ASCInvalidFieldInParam)

			sanitize := func(n int, p []byte) *result {
				cdb := []byte{0x48, 1, 0, 0, 0, 0, 0, byte(n >> 8), byte(n), 0}
				return r.do(cdb, p, 0)
			}
			list := func(n, pattern int) []byte {
				return append([]byte{1, 0, byte(pattern >> 8), byte(pattern)}, make([]byte, n-4)...)
			}
			sanitize(bs+4, list(bs+4, bs)).good()
			sanitize(bs+5, list(bs+5, bs)).illegal(spc.ASCInvalidFieldInCDB)
			sanitize(bs+4, list(bs+4, bs+1)).illegal(spc.ASCInvalidFieldInCDB)
			sanitize(5, list(5, 1)).good()
			sanitize(4, list(5, 1)[:4]).illegal(spc.ASCInvalidFieldInCDB)
			sanitize(5, list(5, 0)).illegal(spc.ASCInvalidFieldInCDB)
		})
	}
}
