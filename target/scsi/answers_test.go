package scsi

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"testing"

	"softiser/internal/await"
	"softiser/internal/spc"

	"softiser/blockdev"
	"softiser/blockdev/crashlog"
	"softiser/blockdev/faulty"
)

// hexed compares an answer with what the standard's tables make of it.
func hexed(t *testing.T, what string, got []byte, want ...string) {
	t.Helper()
	var b []byte
	for _, w := range want {
		p, err := hex.DecodeString(w)
		if err != nil {
			t.Fatal(err)
		}
		b = append(b, p...)
	}
	if !bytes.Equal(got, b) {
		t.Errorf("%s:\ngot  % x\nwant % x", what, got, b)
	}
}

// TestPersistentReserveInBytes: the answers of PERSISTENT RESERVE IN, byte for byte (SPC-4
// §6.14): what can be kept, nothing, an all registrants reservation, and who is who.
func TestPersistentReserveInBytes(t *testing.T) {
	ask := func(r *rig, sa byte) []byte {
		t.Helper()
		return r.do(spc.AppendPersistIn(nil, sa, 1024), nil, 1024).good().data
	}
	r := newRig(t, Config{})
	hexed(t, "capabilities without a place for state", ask(r, spc.SAPrinCapabilities), "00081c80ea010000")

	r = newRig(t, Config{StateDir: t.TempDir()}, LUConfig{Volume: newNamed(t, "a")})
	a, b := r.nx[0], r.nx[1]
	hexed(t, "capabilities", ask(r, spc.SAPrinCapabilities), "00081d80ea010000")
	hexed(t, "no key", ask(r, spc.SAPrinReadKeys), "0000000000000000")
	hexed(t, "no reservation", ask(r, spc.SAPrinReadRes), "0000000000000000")
	hexed(t, "nobody", ask(r, spc.SAPrinFullStatus), "0000000000000000")
	r.prout(a, spc.SAProutRegister, 0, 0, keyA, func(p *spc.PersistOut) { p.APTPL = true }).good()
	hexed(t, "capabilities, and it is kept", ask(r, spc.SAPrinCapabilities), "00081d81ea010000")
	r.prout(a, spc.SAProutReserve, spc.PRWriteExclusive, keyA, 0).good()
	hexed(t, "reserved", ask(r, spc.SAPrinReadRes), "0000000100000010", "000000000000aaaa", "0000000000010000")
	id := spc.AppendTransportID(nil, a.client.ID.Initiator)
	status := func(where byte) []byte {
		d := []byte{7: 0, 23: 0}
		binary.BigEndian.PutUint64(d, keyA)
		d[12], d[13] = where, byte(spc.PRWriteExclusive)
		d[19] = 1 // relative target port
		binary.BigEndian.PutUint32(d[20:], uint32(len(id)))
		d = append(d, id...)
		return append(binary.BigEndian.AppendUint32([]byte{0, 0, 0, 1}, uint32(len(d))), d...)
	}
	if got, want := ask(r, spc.SAPrinFullStatus), status(0x01); !bytes.Equal(got, want) {
		t.Errorf("full status\ngot  % x\nwant % x", got, want)
	}
	r.prout(a, spc.SAProutClear, 0, keyA, 0).good()
	r.prout(b, spc.SAProutRegister, 0, 0, keyB, func(p *spc.PersistOut) { p.AllPorts = true }).good()
	r.prout(b, spc.SAProutReserve, spc.PRWriteExclusiveAllRegistrant, keyB, 0).good()
	hexed(t, "reserved for all registrants", ask(r, spc.SAPrinReadRes), "0000000300000010", "0000000000000000", "0000000000070000")
	if got := ask(r, spc.SAPrinFullStatus); got[8+12] != 0x03 || got[8+13] != byte(spc.PRWriteExclusiveAllRegistrant) {
		t.Errorf("ALL_TG_PT, R_HOLDER and type are %02x %02x", got[8+12], got[8+13])
	}
}

// TestCopyManagerBytes: what RECEIVE COPY OPERATING PARAMETERS (SPC-4 §6.23) and the third
// party copy page (§7.8.17) promise is what is enforced, see TestCopyBounds and
// TestTokenBounds.
func TestCopyManagerBytes(t *testing.T) {
	r := newRig(t, Config{}, LUConfig{Volume: newNamed(t, "a"), Workers: 3})
	cdb := make([]byte, 16)
	cdb[0], cdb[1], cdb[13] = byte(spc.OpThirdPartyIn), spc.SACopyOperating, 255
	for range 4 { // what the buffers of answers held before is no part of the next one
		r.do(spc.AppendInquiryVPD(nil, 0x8F, 1024), nil, 1024).good()
	}
	hexed(t, "operating parameters", r.do(cdb, nil, 255).good().data,
		"0000002b01000000", be16(maxCopyTargets)+be16(maxCopySegments), be32(maxCopyList), be32(maxCopyBytes),
		"0000000000000000"+"000000000000", be16(3), "03"+"09"+"0000000000"+"03", "020ae4")
	hexed(t, "third party copy page", r.do(spc.AppendInquiryVPD(nil, 0x8F, 1024), nil, 1024).good().data,
		"008f0080",
		"00000020", "000000000000"+be16(maxTokenRanges), be32(maxTokenSeconds), be32(defaultTokenSeconds), "00000000"+be32(maxTokenBytes), "0000000004000000",
		"0001000c", "0a"+"8303001011"+"8403000307"+"00",
		"0004001c", "00000000"+be16(maxCopyTargets)+be16(maxCopySegments), be32(maxCopyList), "00000000000000000000000000000000",
		"00080004", "03020ae4",
		"80010020", be32(defaultWorkers)+be32(defaultWorkers), be32(maxCopyBytes), "09000000", "00000000000000000000000000000000")
}

func be16(v uint16) string { return hex.EncodeToString(binary.BigEndian.AppendUint16(nil, v)) }
func be32(v uint32) string { return hex.EncodeToString(binary.BigEndian.AppendUint32(nil, v)) }

// TestCopyOfOddUnits: a destination that is not there, blocks that are counted by one unit
// or the other, a segment of nothing at the end, one that is cut short, and a unit by its
// EUI.
func TestCopyOfOddUnits(t *testing.T) {
	r := newRig(t, Config{}, LUConfig{Volume: newNamed(t, "a")}, LUConfig{LUN: 1, Volume: newVolume(t, 1<<20, 4096)})
	n := r.nx[0]
	data := fill(64<<10, 9)
	r.on(n, 0, spc.AppendWrite(nil, 0, 128, false), data, 0).good()
	small, large := r.target(0), r.target(1)
	large[30], large[31] = 0x10, 0
	gone := bytes.Clone(small)
	gone[9] ^= 0xFF
	run := func(targets []byte, s spc.CopySegment) *result {
		t.Helper()
		list := copyList(1, targets, s)
		return r.on(n, 0, xcopy(list), list, 0)
	}
	run(append(small, gone...), spc.CopySegment{Type: spc.CopyBlockToBlock, Dst: 1, Blocks: 1}).sense(spc.KeyCopyAborted, spc.ASCCopyTargetGone)
	both := append(bytes.Clone(small), large...)
	copied := func(want int) {
		t.Helper()
		got := r.on(n, 1, spc.AppendRead(nil, 0, 16, false), nil, len(data)).good().data
		if !bytes.Equal(got[:want], data[:want]) || !allZero(got[want:]) {
			t.Errorf("not %d bytes were copied", want)
		}
		r.on(n, 1, spc.AppendWrite(nil, 0, 16, false), make([]byte, len(data)), 0).good()
	}
	run(both, spc.CopySegment{Type: spc.CopyBlockToBlock, Dst: 1, Blocks: 8}).good()
	copied(8 * 512)
	run(both, spc.CopySegment{Type: spc.CopyBlockToBlock, Dst: 1, Blocks: 8, DC: true}).good()
	copied(8 * 4096)
	run(small, spc.CopySegment{Type: spc.CopyBlockToBlock, SrcLBA: 2048, DstLBA: 2048}).good()
	run(small, spc.CopySegment{Type: spc.CopyBlockOffset, SrcLBA: 2047, SrcOff: 512, DstLBA: 2047, DstOff: 512}).good()
	run(small, spc.CopySegment{Type: spc.CopyBlockOffset, SrcLBA: 2047, SrcOff: 1024}).sense(spc.KeyCopyAborted, spc.ASCUnreachableCopy)

	list := copyList(1, small, spc.CopySegment{Type: spc.CopyBlockToBlock, Blocks: 1})
	h := list[:spc.CopyHeaderLen]
	h[0], h[1] = 0, 3<<3 // no identifier, and so no result
	r.on(n, 0, xcopy(list), list, 0).good()
	cdb := make([]byte, 16)
	cdb[0], cdb[13] = byte(spc.OpThirdPartyIn), 64
	r.on(n, 0, cdb, nil, 64).illegal(spc.ASCInvalidFieldInCDB)
	list = list[:len(list)-1]
	binary.BigEndian.PutUint32(list[8:], binary.BigEndian.Uint32(list[8:])-1)
	r.on(n, 0, xcopy(list), list, 0).illegal(spc.ASCParameterListLength)

	d := spc.Designator{CodeSet: spc.CodeSetBinary, Type: spc.DesignatorEUI64, ID: r.dev.lookup(0).vol.Identity().EUI}
	seg := spc.CopySegment{Type: spc.CopyBlockToBlock, Blocks: 1, DstLBA: 500}
	run(spc.AppendCopyTarget(nil, d, 512), seg).good()
	d.Association = 1 // of a port
	run(spc.AppendCopyTarget(nil, d, 512), seg).sense(spc.KeyCopyAborted, spc.ASCCopyTargetGone)
	d.Association, d.Type = 0, spc.DesignatorNAA
	run(spc.AppendCopyTarget(nil, d, 512), seg).sense(spc.KeyCopyAborted, spc.ASCCopyTargetGone)
	d.Type, d.ID = spc.DesignatorEUI64, r.dev.lookup(0).vol.Identity().NAA
	run(spc.AppendCopyTarget(nil, d, 512), seg).sense(spc.KeyCopyAborted, spc.ASCCopyTargetGone)
}

// TestTokenLists: lists of the token commands that contradict themselves are refused, and
// no list is no error; a token cannot be guessed, and goes with its unit.
func TestTokenLists(t *testing.T) {
	r := twoUnits(t)
	n := r.nx[0]
	send := func(lun uint16, sa byte, list []byte) *result {
		t.Helper()
		return r.on(n, lun, tokenCDB(sa, 3, list), list, 0)
	}
	p := (&spc.PopulateToken{Ranges: []spc.Range{{Blocks: 8}}}).Append(nil)
	token := r.newToken(n, 0, spc.Range{Blocks: 8})
	w := (&spc.WriteUsingToken{Token: token, Ranges: []spc.Range{{Blocks: 8}}}).Append(nil)
	for sa, list := range map[byte][]byte{spc.SAPopulateToken: p, spc.SAWriteUsingToken: w} {
		send(0, sa, nil).good()
		longer := bytes.Clone(list)
		longer[1]++
		send(0, sa, longer).illegal(spc.ASCParameterListLength)
		send(0, sa, make([]byte, 64<<10)).illegal(map[byte]spc.ASC{spc.SAPopulateToken: spc.ASCCopyTooManySegments, spc.SAWriteUsingToken: spc.ASCTokenLength}[sa])
	}
	w[16+7]-- // the token's own length
	send(0, spc.SAWriteUsingToken, w).illegal(spc.ASCTokenLength)

	other := r.newToken(n, 0, spc.Range{Blocks: 8})
	if bytes.Equal(token[128:160], other[128:160]) || allZero(token[128:160]) {
		t.Error("two tokens have one secret")
	}
	w = (&spc.WriteUsingToken{Token: token, Ranges: []spc.Range{{Blocks: 8}}}).Append(nil)
	send(1, spc.SAWriteUsingToken, w).good()
	if err := r.dev.RemoveLUN(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	r.on(n, 1, spc.AppendTestUnitReady(nil), nil, 0).sense(spc.KeyUnitAttention, spc.ASCLUNsChanged)
	send(1, spc.SAWriteUsingToken, w).illegal(spc.ASCInvalidTokenOp)
}

// TestFailedCopyIsTold: how a copy failed is kept for who asks later; EXTENDED COPY and the
// token commands count their identifiers apart.
func TestFailedCopyIsTold(t *testing.T) {
	f := faulty.New(newNamed(t, "b"), 1)
	r := newRig(t, Config{}, LUConfig{Volume: newNamed(t, "a")}, LUConfig{LUN: 1, Volume: f})
	n := r.nx[0]
	w := (&spc.WriteUsingToken{Token: r.newToken(n, 0, spc.Range{Blocks: 8}), Ranges: []spc.Range{{Blocks: 8}}}).Append(nil)
	f.SetRules(faulty.Rule{Op: faulty.Write, Err: blockdev.ErrMedium})
	r.on(n, 0, spc.AppendWrite(nil, 0, 8, false), fill(4096, 1), 0).good()
	r.on(n, 1, tokenCDB(spc.SAWriteUsingToken, 5, w), w, 0).sense(spc.KeyMedium, spc.ASCWriteError)
	i := r.rodInfo(n, 1, 5)
	sense, err := spc.ParseSense(i.Sense)
	if i.Status != spc.CopyFailed || i.Final != spc.StatusCheckCondition || i.Transfer != 0 || err != nil || sense.Key != spc.KeyMedium || sense.ASC != spc.ASCWriteError {
		t.Errorf("%+v (%v)", i, err)
	}
	f.SetRules()
	list := copyList(5, r.target(1), spc.CopySegment{Type: spc.CopyBlockToBlock, Blocks: 3, DstLBA: 100})
	r.on(n, 1, xcopy(list), list, 0).good()
	if i = r.rodInfo(n, 1, 5); i.Action != spc.SAWriteUsingToken || i.Status != spc.CopyFailed {
		t.Errorf("an EXTENDED COPY has taken the identifier of a WRITE USING TOKEN: %+v", i)
	}
	cdb := make([]byte, 16)
	cdb[0], cdb[2], cdb[13] = byte(spc.OpThirdPartyIn), 5, 64
	hexed(t, "copy status", r.on(n, 1, cdb, nil, 64).good().data, "00000008"+"010000f1"+"00000003")
}

// TestCopyIdentifierInUse: a copy with the identifier of one that runs is refused, and the result is still that
// of the first; afterwards the identifier may be had again.
func TestCopyIdentifierInUse(t *testing.T) {
	f := faulty.New(newNamed(t, "b"), 1)
	r := newRig(t, Config{}, LUConfig{Volume: newNamed(t, "a")}, LUConfig{LUN: 1, Volume: f, Workers: 2})
	n := r.nx[0]
	list := copyList(5, append(r.target(0), r.target(1)...), spc.CopySegment{Type: spc.CopyBlockToBlock, Dst: 1, Blocks: 8})
	w := (&spc.WriteUsingToken{Immed: true, Token: r.newToken(n, 0, spc.Range{Blocks: 8}), Ranges: []spc.Range{{Blocks: 8}}}).Append(nil)
	hold := make(chan struct{})
	f.SetRules(faulty.Rule{Op: faulty.Write, Hold: hold})
	first := r.start(n, 1, xcopy(list), list, 0)
	for r.dev.lookup(1).copies.find(&first.Task, 5, true) == nil { // it is there as soon as it runs
		if t.Context().Err() != nil {
			t.Fatal("the copy does not begin")
		}
	}
	r.on(n, 1, xcopy(list), list, 0).illegal(spc.ASCOperationInProgress)
	r.on(n, 1, tokenCDB(spc.SAWriteUsingToken, 5, w), w, 0).good() // identifiers of another kind
	r.on(n, 1, tokenCDB(spc.SAWriteUsingToken, 5, w), w, 0).illegal(spc.ASCOperationInProgress)
	p := (&spc.PopulateToken{Ranges: []spc.Range{{Blocks: 8}}}).Append(nil)
	r.on(n, 1, tokenCDB(spc.SAPopulateToken, 5, p), p, 0).illegal(spc.ASCOperationInProgress)
	if i := r.rodInfo(n, 1, 5); i.Status != spc.CopyBackground {
		t.Errorf("%+v", i)
	}
	close(hold)
	r.finish(first).good()
	r.on(n, 1, xcopy(list), list, 0).good()
	for r.rodInfo(n, 1, 5).Status == spc.CopyBackground {
		if t.Context().Err() != nil {
			t.Fatal("the copy goes on")
		}
	}
	r.on(n, 1, tokenCDB(spc.SAPopulateToken, 5, p), p, 0).good()
}

// TestCopyInBackground: with IMMED the status comes at once and the result says how far it
// is; no more copies than the unit has workers go on like that, and one that ends makes
// room.
func TestCopyInBackground(t *testing.T) {
	f := faulty.New(newNamed(t, "b"), 1)
	r := newRig(t, Config{}, LUConfig{Volume: f, Workers: 1})
	n := r.nx[0]
	zero := spc.RODToken{Type: spc.RODZero}
	w := (&spc.WriteUsingToken{Immed: true, Token: zero.Append(nil), Ranges: []spc.Range{{Blocks: 8}}}).Append(nil)
	apart := (&spc.WriteUsingToken{Token: zero.Append(nil), Ranges: []spc.Range{{Blocks: 8}}}).Append(nil)
	for range 2 { // others do not count
		r.do(tokenCDB(spc.SAWriteUsingToken, 1, apart), apart, 0).good()
	}
	for round := range 2 {
		hold := make(chan struct{})
		f.SetRules(faulty.Rule{Op: faulty.Discard, Hold: hold})
		id := byte(10 + 10*round)
		r.do(tokenCDB(spc.SAWriteUsingToken, uint32(id), w), w, 0).good()
		if i := r.rodInfo(n, 0, id); i.Status != spc.CopyBackground || i.Transfer != 0 {
			t.Errorf("%+v", i)
		}
		second := r.start(n, 0, tokenCDB(spc.SAWriteUsingToken, uint32(id+1), w), w, 0)
		for r.dev.lookup(0).copies.find(&second.Task, uint32(id+1), false) == nil { // it is there as soon as it runs
			select {
			case <-second.done:
				t.Fatal("a second copy ended while storage held it up")
			case <-t.Context().Done():
				t.Fatal("the second copy does not begin")
			default:
			}
		}
		if i := r.rodInfo(n, 0, id+1); i.Status != spc.CopyForeground {
			t.Errorf("%+v", i)
		}
		close(hold)
		r.finish(second).good()
		for r.rodInfo(n, 0, id).Status == spc.CopyBackground {
			if t.Failed() {
				return
			}
		}
		if i := r.rodInfo(n, 0, id); i.Status != spc.CopyDone || i.Transfer != 8 {
			t.Errorf("%+v", i)
		}
		for r.dev.lookup(0).copies.background.Load() != 0 { // counted just before it ends
			if t.Context().Err() != nil {
				t.Fatal("the copy is still counted")
			}
		}
	}
}

// TestUnmapEdges: what UNMAP and WRITE SAME refuse, the last block of the medium, and an
// error of storage that is told.
func TestUnmapEdges(t *testing.T) {
	const last = 1<<20/512 - 1
	f := faulty.New(newNamed(t, "a"), 1)
	r := newRig(t, Config{}, LUConfig{Volume: f})
	unmap := func(rs ...spc.Range) *result {
		t.Helper()
		b := spc.AppendUnmapList(nil, rs)
		return r.do(spc.AppendUnmap(nil, uint16(len(b))), b, 0)
	}
	r.do(spc.AppendWrite(nil, last, 1, false), fill(512, 1), 0).good()
	unmap(spc.Range{LBA: last, Blocks: 1}, spc.Range{LBA: last + 1}).good()
	if !allZero(r.do(spc.AppendRead(nil, last, 1, false), nil, 512).good().data) {
		t.Error("the last block is still there")
	}
	b := spc.AppendUnmapList(nil, []spc.Range{{Blocks: 1}})
	anchor := spc.AppendUnmap(nil, uint16(len(b)))
	anchor[1] |= 1
	r.do(anchor, b, 0).illegal(spc.ASCInvalidFieldInCDB)
	block := fill(512, 5)
	r.do(spc.AppendWriteSame16(nil, 0, 8, spc.FlagNDOB), block, 0).illegal(spc.ASCInvalidFieldInIU)
	ten := []byte{0x41, 1, 0, 0, 0, 0, 0, 0, 8, 0} // NDOB is a field of the longer ones
	r.do(ten, block, 0).illegal(spc.ASCInvalidFieldInCDB)
	if got := r.do(spc.AppendWriteSame16(nil, 0, 8, 0), block[:100], 0).illegal(spc.ASCInvalidFieldInIU); got.wanted != 512 {
		t.Errorf("WRITE SAME wants %d bytes", got.wanted)
	}
	f.SetRules(faulty.Rule{Op: faulty.Discard, Err: blockdev.ErrMedium})
	unmap(spc.Range{Blocks: 8}).sense(spc.KeyMedium, spc.ASCWriteError)
	r.do(spc.AppendWriteSame16(nil, 0, 8, spc.FlagNDOB), nil, 0).sense(spc.KeyMedium, spc.ASCWriteError)

	thick := newRig(t, Config{}, LUConfig{Volume: thickVolume{newNamed(t, "thick")}})
	thick.do(spc.AppendWriteSame16(nil, 0, 8, spc.FlagUnmap), block, 0).illegal(spc.ASCInvalidFieldInCDB)
	thick.do(spc.AppendWriteSame16(nil, 0, 8, 0), block, 0).good()
}

// thickVolume is a volume that gives no blocks back.
type thickVolume struct{ blockdev.Device }

func (v thickVolume) Info() blockdev.Info {
	i := v.Device.Info()
	i.Discard, i.ZeroesOnTrim = false, false
	return i
}

// TestWriteSameWithoutCache: with WCE clear the zeroes of WRITE SAME are durable at its end.
func TestWriteSameWithoutCache(t *testing.T) {
	v, err := crashlog.New(1<<20, 512)
	if err != nil {
		t.Fatal(err)
	}
	f := faulty.New(v, 1)
	r := newRig(t, Config{}, LUConfig{Volume: f})
	for _, flags := range []byte{0, spc.FlagUnmap} {
		r.dev.lookup(0).vol.SetWriteCache(true)
		r.do(spc.AppendWrite(nil, 0, 8, true), fill(4096, 3), 0).good()
		r.dev.lookup(0).vol.SetWriteCache(false)
		r.do(spc.AppendWriteSame16(nil, 0, 8, flags|spc.FlagNDOB), nil, 0).good()
		for img := range v.States(v.Now(), 100, 1) {
			if !allZero(img.Bytes()[:4096]) {
				t.Fatal("blocks that were made zero came back with the power")
			}
		}
	}
	f.SetRules(faulty.Rule{Op: faulty.Flush, Err: blockdev.ErrMedium})
	r.do(spc.AppendWriteSame16(nil, 0, 8, spc.FlagNDOB), nil, 0).sense(spc.KeyMedium, spc.ASCWriteError)
}

// TestLBAStatusBounds: GET LBA STATUS tells as many runs as there is room for, and runs of
// one kind as one, however it asked for them.
func TestLBAStatusBounds(t *testing.T) {
	const blocks = 1 << 21
	r := newRig(t, Config{}, LUConfig{Volume: newSized(t, "a", blocks*512)})
	status := func(alloc uint32) []byte {
		t.Helper()
		return r.do(spc.AppendGetLBAStatus(nil, 0, alloc), nil, int(alloc)).good().data
	}
	hexed(t, "one hole", status(512), "0000001400000000", "0000000000000000"+be32(blocks)+"01000000")
	r.do(spc.AppendWriteSame16(nil, 0, 8, spc.FlagNDOB), nil, 0).good()
	for lba := range uint64(4) {
		r.do(spc.AppendWrite(nil, lba<<12, 8, false), fill(4096, 1), 0).good()
	}
	r.do(spc.AppendWriteSame16(nil, 5<<12, 8, 0), make([]byte, 512), 0).good() // zeroes, and no leave to unmap
	hexed(t, "zeroes that were written", r.do(spc.AppendGetLBAStatus(nil, 5<<12, 24), nil, 24).good().data, "0000001400000000", "0000000000005000"+"00000008"+"00000000")
	r.do(spc.AppendWriteSame16(nil, 5<<12, 8, spc.FlagUnmap), make([]byte, 512), 0).good()
	r.do(spc.AppendGetLBAStatus(nil, 0, 23), nil, 23).illegal(spc.ASCInvalidFieldInCDB)
	first := "0000000000000000" + "00000008" + "00000000"
	hexed(t, "one of several runs", status(24), "0000001400000000", first)
	hexed(t, "two of several runs", status(40), "0000002400000000", first, "0000000000000008"+"00000ff8"+"01000000")
	if got := status(512); binary.BigEndian.Uint32(got) != 4+8*16 {
		t.Errorf("eight runs: % x", got)
	}
}

// TestAbortBetweenPieces: UNMAP and WRITE SAME leave what they have not come to as it is
// when they are aborted.
func TestAbortBetweenPieces(t *testing.T) {
	list := spc.AppendUnmapList(nil, []spc.Range{{Blocks: 8}, {LBA: 4096, Blocks: 8}})
	for name, c := range map[string]struct {
		op       faulty.Op
		cdb, out []byte
	}{
		"UNMAP":      {faulty.Discard, spc.AppendUnmap(nil, uint16(len(list))), list},
		"WRITE SAME": {faulty.Write, spc.AppendWriteSame16(nil, 0, 4104, 0), fill(512, 9)},
	} {
		t.Run(name, func(t *testing.T) {
			f := faulty.New(newSized(t, "a", 8<<20), 1)
			r := newRig(t, Config{}, LUConfig{Volume: f})
			want := fill(4096, 1)
			r.do(spc.AppendWrite(nil, 4096, 8, false), want, 0).good()
			hold := make(chan struct{})
			f.SetRules(faulty.Rule{Op: c.op, Hold: hold, Times: 1})
			x := r.start(r.nx[0], 0, c.cdb, c.out, 0)
			await.True(t, "the first piece is at the volume", func() bool { return f.Held() == 1 })
			done := make(chan TMFResponse, 1)
			r.dev.Manage(r.nx[0], AbortTask, spc.EncodeLUN(0), &x.Task, func(a TMFResponse) { done <- a })
			await.True(t, "the command has been aborted", x.Aborted)
			close(hold)
			<-done
			r.finish(x)
			if got := r.do(spc.AppendRead(nil, 4096, 8, false), nil, 4096).good().data; !bytes.Equal(got, want) {
				t.Error("an aborted command went on with its next piece")
			}
		})
	}
}

// TestCopyIsAborted: the result of a copy that a reset has ended says so.
func TestCopyIsAborted(t *testing.T) {
	f := faulty.New(newNamed(t, "b"), 1)
	r := newRig(t, Config{}, LUConfig{Volume: f})
	a, b := r.nx[0], r.nx[1]
	zero := spc.RODToken{Type: spc.RODZero}
	w := (&spc.WriteUsingToken{Token: zero.Append(nil), Ranges: []spc.Range{{Blocks: 8}, {LBA: 100, Blocks: 8}}}).Append(nil)
	hold := make(chan struct{})
	f.SetRules(faulty.Rule{Op: faulty.Discard, Hold: hold, Times: 1})
	x := r.start(a, 0, tokenCDB(spc.SAWriteUsingToken, 4, w), w, 0)
	await.True(t, "the copy is at the volume", func() bool { return f.Held() == 1 })
	done := make(chan TMFResponse, 1)
	r.dev.Manage(b, LogicalReset, spc.EncodeLUN(0), nil, func(x TMFResponse) { done <- x })
	await.True(t, "the copy has been aborted", x.Aborted)
	close(hold)
	<-done
	r.finish(x)
	r.on(a, 0, spc.AppendTestUnitReady(nil), nil, 0) // the reset
	if i := r.rodInfo(a, 0, 4); i.Status != spc.CopyAborted || i.Final != spc.StatusCheckCondition {
		t.Errorf("%+v", i)
	}
}

// TestCopyBehindLeavesRemovedUnit: a copy that goes on behind its status does nothing more to
// a unit that is being removed.
func TestCopyBehindLeavesRemovedUnit(t *testing.T) {
	v := newNamed(t, "b")
	f := faulty.New(v, 1)
	r := newRig(t, Config{}, LUConfig{Volume: f})
	want := fill(4096, 1)
	r.do(spc.AppendWrite(nil, 100, 8, false), want, 0).good()
	zero := spc.RODToken{Type: spc.RODZero}
	w := (&spc.WriteUsingToken{Immed: true, Token: zero.Append(nil), Ranges: []spc.Range{{Blocks: 8}, {LBA: 100, Blocks: 8}}}).Append(nil)
	hold := make(chan struct{})
	f.SetRules(faulty.Rule{Op: faulty.Discard, Hold: hold, Times: 1})
	r.do(tokenCDB(spc.SAWriteUsingToken, 4, w), w, 0).good()
	await.True(t, "the copy is at the volume", func() bool { return f.Held() == 1 })
	lu, gone := r.dev.lookup(0), make(chan error, 1)
	go func() { gone <- r.dev.RemoveLUN(context.WithoutCancel(t.Context()), 0) }()
	await.True(t, "the unit is being removed", lu.Removed)
	close(hold)
	if err := <-gone; err != nil {
		t.Error(err)
	}
	got := make([]byte, len(want))
	if _, err := v.ReadAt(got, 100*512); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the copy went on (%v)", err)
	}
}

// TestCopyToReadOnly: the copy manager writes where its initiator may, and nowhere else.
func TestCopyToReadOnly(t *testing.T) {
	r := newRig(t, Config{}, LUConfig{Volume: newNamed(t, "a")}, LUConfig{LUN: 1, Volume: newNamed(t, "b"), ReadOnly: true})
	both := append(r.target(0), r.target(1)...)
	one := spc.CopySegment{Type: spc.CopyBlockToBlock, Src: 1, Dst: 0, Blocks: 1}
	list := copyList(1, both, one)
	r.do(xcopy(list), list, 0).good()
	one.Src, one.Dst = 0, 1
	list = copyList(1, both, one)
	r.do(xcopy(list), list, 0).sense(spc.KeyCopyAborted, spc.ASCCopyTargetGone)
}

// extentsFail is a volume that cannot say what it holds.
type extentsFail struct{ blockdev.Device }

func (extentsFail) Extents(int64, int64) ([]blockdev.Extent, error) { return nil, blockdev.ErrMedium }

func TestLBAStatusFails(t *testing.T) {
	r := newRig(t, Config{}, LUConfig{Volume: extentsFail{newNamed(t, "a")}})
	r.do(spc.AppendGetLBAStatus(nil, 0, 64), nil, 64).sense(spc.KeyMedium, spc.ASCUnrecoveredRead)
}

// TestWriteAtomicBoundary: atomic boundaries are not offered, and a volume that forgets
// everything needs no journal.
func TestWriteAtomicBoundary(t *testing.T) {
	r := newRig(t, Config{StateDir: t.TempDir()}, LUConfig{Volume: newNamed(t, "a")})
	for _, at := range []int{10, 11} {
		cdb := spc.AppendWriteAtomic16(nil, 8, 8, false)
		cdb[at] = 1
		r.do(cdb, fill(4096, 1), 0).illegal(spc.ASCInvalidFieldInCDB)
	}
	r.do(spc.AppendWriteAtomic16(nil, 8, 8, false), fill(4096, 1), 0).good()
	if _, err := os.Stat(r.dev.lookup(0).journalName()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a journal was made: %v", err)
	}
}
