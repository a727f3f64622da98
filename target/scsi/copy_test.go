package scsi

import (
	"bytes"
	"encoding/binary"
	"testing"
	"testing/synctest"
	"time"

	"softiser/blockdev"
	"softiser/blockdev/faulty"
	"softiser/internal/spc"
)

// twoUnits is a rig with two volumes of 1 MiB.
func twoUnits(t *testing.T) *rig {
	return newRig(t, Config{}, LUConfig{Volume: newNamed(t, "a")}, LUConfig{LUN: 1, Volume: newNamed(t, "b")})
}

func (r *rig) target(lun uint16) []byte {
	lu := r.dev.lookup(lun)
	d := spc.Designator{CodeSet: spc.CodeSetBinary, Type: spc.DesignatorNAA, ID: lu.vol.Identity().NAA}
	return spc.AppendCopyTarget(nil, d, 512)
}

func xcopy(list []byte) []byte {
	cdb := make([]byte, 16)
	cdb[0] = byte(spc.OpThirdPartyOut)
	binary.BigEndian.PutUint32(cdb[10:], uint32(len(list)))
	return cdb
}

func copyList(id byte, targets []byte, segs ...spc.CopySegment) []byte {
	var b []byte
	for i := range segs {
		b = segs[i].Append(b)
	}
	h := spc.CopyHeader{ListID: id, TargetLen: uint32(len(targets)), SegmentLen: uint32(len(b))}
	return append(append(h.Append(nil), targets...), b...)
}

func TestExtendedCopy(t *testing.T) {
	r := twoUnits(t)
	n := r.nx[0]
	data := fill(64*512, 7)
	r.on(n, 0, spc.AppendWrite(nil, 10, 64, false), data, 0).good()
	targets := append(r.target(0), r.target(1)...)
	list := copyList(5, targets,
		spc.CopySegment{Type: spc.CopyBlockToBlock, Src: 0, Dst: 1, Blocks: 32, SrcLBA: 10, DstLBA: 100},
		spc.CopySegment{Type: spc.CopyBlockOffset, Src: 0, Dst: 1, Bytes: 32 * 512, SrcLBA: 41, SrcOff: 512, DstLBA: 132})
	r.on(n, 0, xcopy(list), list, 0).good()
	if got := r.on(n, 1, spc.AppendRead(nil, 100, 64, false), nil, len(data)).good(); !bytes.Equal(got.data, data) {
		t.Error("copied other data")
	}
	// Overlapping blocks of one unit.
	list = copyList(6, r.target(0), spc.CopySegment{Type: spc.CopyBlockToBlock, Blocks: 64, SrcLBA: 10, DstLBA: 11})
	r.on(n, 0, xcopy(list), list, 0).good()
	if got := r.on(n, 0, spc.AppendRead(nil, 11, 64, false), nil, len(data)).good(); !bytes.Equal(got.data, data) {
		t.Error("an overlapping copy has smeared its source")
	}
	status := func(id byte) []byte {
		cdb := make([]byte, 16)
		cdb[0], cdb[2], cdb[13] = byte(spc.OpThirdPartyIn), id, 64
		return cdb
	}
	if got := r.on(n, 0, status(5), nil, 64).good().data; got[4] != 1 || binary.BigEndian.Uint32(got[8:]) != 64 {
		t.Errorf("copy status % x", got)
	}
	r.on(n, 0, status(9), nil, 64).illegal(spc.ASCInvalidFieldInCDB)

	gone := append([]byte(nil), r.target(0)...)
	gone[9] ^= 0xFF
	for _, c := range []struct {
		name string
		list []byte
		key  spc.Key
		asc  spc.ASC
	}{
		{"unknown unit", copyList(1, gone, spc.CopySegment{Type: 2, Blocks: 1}), spc.KeyCopyAborted, spc.ASCCopyTargetGone},
		{"index", copyList(1, r.target(0), spc.CopySegment{Type: 2, Dst: 1, Blocks: 1}), spc.KeyCopyAborted, spc.ASCCopyTargetGone},
		{"beyond the end", copyList(1, r.target(0), spc.CopySegment{Type: 2, Blocks: 2, DstLBA: 2047}), spc.KeyCopyAborted, spc.ASCUnreachableCopy},
		{"segment type", copyList(1, r.target(0), spc.CopySegment{Type: 4}), spc.KeyIllegalRequest, spc.ASCCopySegmentType},
		{"target type", copyList(1, append([]byte{0xE0}, r.target(0)[1:]...), spc.CopySegment{Type: 2}), spc.KeyIllegalRequest, spc.ASCCopyTargetType},
		{"too many targets", copyList(1, bytes.Repeat(r.target(0), 9), spc.CopySegment{Type: 2}), spc.KeyIllegalRequest, spc.ASCCopyTooManyTargets},
		{"cut short", copyList(1, r.target(0), spc.CopySegment{Type: 2})[:50], spc.KeyIllegalRequest, spc.ASCParameterListLength},
		{"header only", make([]byte, 15), spc.KeyIllegalRequest, spc.ASCParameterListLength},
	} {
		t.Run(c.name, func(t *testing.T) {
			res := r.on(n, 0, xcopy(c.list), c.list, 0)
			res.t = t
			res.sense(c.key, c.asc)
		})
	}
	r.on(n, 0, xcopy(nil), nil, 0).good()
}

// The sense data of a copy that fails says in which segment, and what of that has not been written, counted from where it
// has not been written without a gap: nothing has, of what is copied from its end on.
func TestFailedCopyTellsWhere(t *testing.T) {
	const blocks = 5120 // three pieces
	for _, c := range []struct {
		name  string
		seg   spc.CopySegment
		bad   int64 // the block that cannot be written
		valid bool
		info  uint64
		moved uint32
	}{
		{"forward", spc.CopySegment{Type: spc.CopyBlockToBlock, Dst: 1, Blocks: blocks}, 2048, true, blocks - 2048, 2048},
		{"nothing written", spc.CopySegment{Type: spc.CopyBlockToBlock, Dst: 1, Blocks: blocks}, 0, false, 0, 0},
		{"backwards", spc.CopySegment{Type: spc.CopyBlockToBlock, Src: 1, Dst: 1, Blocks: blocks, DstLBA: 2048}, 3072, true, blocks, 2048},
		{"backwards, nothing written", spc.CopySegment{Type: spc.CopyBlockToBlock, Src: 1, Dst: 1, Blocks: blocks, DstLBA: 2048}, 7167, false, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := faulty.New(newSized(t, "b", 4<<20), 1, faulty.Rule{Op: faulty.Write, Off: c.bad * 512, Len: 512, Err: blockdev.ErrMedium})
			r := newRig(t, Config{}, LUConfig{Volume: newSized(t, "a", 4<<20)}, LUConfig{LUN: 1, Volume: f})
			first := spc.CopySegment{Type: spc.CopyBlockToBlock, Blocks: 8}
			list := copyList(1, append(r.target(0), r.target(1)...), first, c.seg)
			got := r.on(r.nx[0], 0, xcopy(list), list, 0).sense(spc.KeyCopyAborted, spc.ASCWriteError)
			if got.sd.InfoValid != c.valid || got.sd.Info != c.info || got.sd.Specific != 1 {
				t.Errorf("information %d (%v), segment %d", got.sd.Info, got.sd.InfoValid, got.sd.Specific)
			}
			cdb := make([]byte, 16)
			cdb[0], cdb[2], cdb[13] = byte(spc.OpThirdPartyIn), 1, 64
			if st := r.on(r.nx[0], 0, cdb, nil, 64).good().data; st[4] != 2 || binary.BigEndian.Uint32(st[8:]) != 8+c.moved {
				t.Errorf("copy status % x", st)
			}
		})
	}
}

func TestOffloadedTransfer(t *testing.T) {
	r := twoUnits(t)
	n := r.nx[0]
	data := fill(64*512, 3)
	r.on(n, 0, spc.AppendWrite(nil, 0, 64, false), data, 0).good()
	send := func(lun uint16, sa byte, id uint32, list []byte) *result {
		cdb := make([]byte, 16)
		cdb[0], cdb[1] = byte(spc.OpThirdPartyOut), sa
		binary.BigEndian.PutUint32(cdb[6:], id)
		binary.BigEndian.PutUint32(cdb[10:], uint32(len(list)))
		return r.on(n, lun, cdb, list, 0)
	}
	info := func(lun uint16, id uint32) spc.RODInfo {
		t.Helper()
		cdb := make([]byte, 16)
		cdb[0], cdb[1] = byte(spc.OpThirdPartyIn), spc.SARODTokenInfo
		binary.BigEndian.PutUint32(cdb[2:], id)
		binary.BigEndian.PutUint32(cdb[10:], 1024)
		i, err := spc.ParseRODInfo(r.on(n, lun, cdb, nil, 1024).good().data)
		if err != nil {
			t.Fatal(err)
		}
		return i
	}
	p := spc.PopulateToken{Timeout: 30, Ranges: []spc.Range{{LBA: 32, Blocks: 32}, {LBA: 0, Blocks: 32}}}
	send(0, spc.SAPopulateToken, 7, p.Append(nil)).good()
	got := info(0, 7)
	if got.Action != spc.SAPopulateToken || got.Status != spc.CopyDone || len(got.Token) != spc.RODTokenLen {
		t.Fatalf("%+v", got)
	}
	w := spc.WriteUsingToken{Token: got.Token, Offset: 16, Ranges: []spc.Range{{LBA: 500, Blocks: 20}, {LBA: 600, Blocks: 28}}}
	send(1, spc.SAWriteUsingToken, 8, w.Append(nil)).good()
	if i := info(1, 8); i.Status != spc.CopyDone || i.Transfer != 48 {
		t.Errorf("%+v", i)
	}
	want := append(append([]byte(nil), data[32*512:]...), data[:32*512]...)[16*512:]
	have := append(r.on(n, 1, spc.AppendRead(nil, 500, 20, false), nil, 20*512).good().data, r.on(n, 1, spc.AppendRead(nil, 600, 28, false), nil, 28*512).good().data...)
	if !bytes.Equal(have, want) {
		t.Error("copied other data than the token stands for")
	}
	// Zero token.
	z := spc.RODToken{Type: spc.RODZero}
	w = spc.WriteUsingToken{Token: z.Append(nil), Ranges: []spc.Range{{LBA: 500, Blocks: 20}}}
	send(1, spc.SAWriteUsingToken, 9, w.Append(nil)).good()
	if b := r.on(n, 1, spc.AppendRead(nil, 500, 20, false), nil, 20*512).good().data; !allZero(b) {
		t.Error("a zero token has not written zeroes")
	}
	// A token with another secret, ranges beyond token and medium.
	forged := append([]byte(nil), got.Token...)
	forged[130] ^= 1
	w = spc.WriteUsingToken{Token: forged, Ranges: []spc.Range{{LBA: 0, Blocks: 1}}}
	send(1, spc.SAWriteUsingToken, 1, w.Append(nil)).illegal(spc.ASCTokenUnknown)
	w = spc.WriteUsingToken{Token: got.Token, Offset: 64, Ranges: []spc.Range{{LBA: 0, Blocks: 1}}}
	send(1, spc.SAWriteUsingToken, 1, w.Append(nil)).illegal(spc.ASCInvalidFieldInParam)
	w = spc.WriteUsingToken{Token: got.Token, Ranges: []spc.Range{{LBA: 2048, Blocks: 1}}}
	send(1, spc.SAWriteUsingToken, 1, w.Append(nil)).illegal(spc.ASCLBAOutOfRange)
	send(1, spc.SAWriteUsingToken, 1, make([]byte, 535)).illegal(spc.ASCParameterListLength)
}

// TestTokenExpires: a token that has not been used for its time-out is told from
// one that never was, for as long as the device remembers.
func TestTokenExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := twoUnits(t)
		n := r.nx[0]
		token := func(seconds uint32) []byte {
			t.Helper()
			p := spc.PopulateToken{Timeout: seconds, Ranges: []spc.Range{{Blocks: 8}}}
			list := p.Append(nil)
			r.on(n, 0, tokenCDB(spc.SAPopulateToken, 1, list), list, 0).good()
			cdb := make([]byte, 16)
			cdb[0], cdb[1], cdb[5] = byte(spc.OpThirdPartyIn), spc.SARODTokenInfo, 1
			binary.BigEndian.PutUint32(cdb[10:], 1024)
			i, err := spc.ParseRODInfo(r.on(n, 0, cdb, nil, 1024).good().data)
			if err != nil {
				t.Fatal(err)
			}
			return i.Token
		}
		use := func(token []byte) *result {
			t.Helper()
			w := spc.WriteUsingToken{Token: token, Ranges: []spc.Range{{Blocks: 8}}}
			list := w.Append(nil)
			return r.on(n, 1, tokenCDB(spc.SAWriteUsingToken, 2, list), list, 0)
		}
		a := token(10)
		for range 3 { // each use puts the end off
			time.Sleep(9 * time.Second)
			use(a).good()
		}
		time.Sleep(10*time.Second + 1)
		use(a).illegal(spc.ASCTokenExpired)
		b := token(0) // the default
		time.Sleep(defaultTokenSeconds * time.Second)
		use(b).good()
		use(a).illegal(spc.ASCTokenExpired)
		// Forgotten, when another one is made after long.
		time.Sleep(rememberExpired)
		c := token(maxTokenSeconds)
		use(a).illegal(spc.ASCTokenUnknown)
		use(b).illegal(spc.ASCTokenExpired)
		// An expired one gives up its room, one that lives does not.
		for range maxTokens - 1 {
			token(maxTokenSeconds)
		}
		use(b).illegal(spc.ASCTokenUnknown)
		use(c).good()
		p := spc.PopulateToken{Ranges: []spc.Range{{Blocks: 8}}}
		list := p.Append(nil)
		r.on(n, 0, tokenCDB(spc.SAPopulateToken, 1, list), list, 0).illegal(spc.ASCTokenResources)
		p.Timeout = maxTokenSeconds + 1
		list = p.Append(nil)
		r.on(n, 0, tokenCDB(spc.SAPopulateToken, 1, list), list, 0).illegal(spc.ASCInvalidFieldInParam)
		r.close()
		r.nx = nil
	})
}
