package scsi

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	"softiser/blockdev"
	"softiser/internal/await"
	"softiser/internal/spc"
)

func TestReadWrite(t *testing.T) {
	for _, bs := range []int{512, 4096} {
		r := newRig(t, Config{}, LUConfig{Volume: newVolume(t, 64<<20, bs)})
		for _, c := range []struct {
			name   string
			blocks int
			opts   []func(*call)
		}{
			{"solicited", 8, nil},
			{"immediate", 8, []func(*call){immediate(8 * bs)}},
			{"part immediate", 16, []func(*call){immediate(3*bs + 100)}},
			{"chunks", 9 << 20 / bs, nil},
			{"chunks, part immediate", 9 << 20 / bs, []func(*call){immediate(bs)}},
		} {
			t.Run(c.name, func(t *testing.T) {
				data := fill(c.blocks*bs, byte(c.blocks))
				for _, lba := range []uint64{0, 5, 77} {
					r.do(spc.AppendWrite(nil, lba, uint32(c.blocks), false), data, 0, c.opts...).good()
					got := r.do(spc.AppendRead(nil, lba, uint32(c.blocks), false), nil, len(data)).good()
					if !bytes.Equal(got.data, data) {
						t.Fatalf("LBA %d: read back other data", lba)
					}
				}
			})
		}
	}
}

func TestResiduals(t *testing.T) {
	r := newRig(t, Config{})
	data := fill(4*512, 1)
	r.do(spc.AppendWrite(nil, 0, 4, false), data, 0).good()
	// READ with less room than the CDB asks: that much and no error.
	for _, n := range []int{0, 1, 511, 512, 1000, 2048, 4096} {
		got := r.do(spc.AppendRead(nil, 0, 4, false), nil, n).good()
		if want := data[:min(n, 2048)]; !bytes.Equal(got.data, want) || got.wanted != 2048 {
			t.Errorf("room for %d: %d bytes, wanted %d", n, len(got.data), got.wanted)
		}
	}
	// WRITE with less than the CDB asks: what came is written, to the byte.
	for _, bs := range []func(uint64, uint32, bool) []byte{
		func(l uint64, n uint32, f bool) []byte { return spc.AppendWrite(nil, l, n, f) },
		func(l uint64, n uint32, _ bool) []byte { return spc.AppendWriteVerify(nil, l, n, 1) },
	} {
		for _, n := range []int{0, 1, 512, 1000, 2047} {
			data = fill(4*512, byte(n))
			r.do(spc.AppendWrite(nil, 0, 4, false), data, 0).good()
			got := r.do(bs(0, 4, false), fill(n, 99), 0).good()
			if got.wanted != 2048 {
				t.Errorf("%d bytes: wanted %d", n, got.wanted)
			}
			copy(data, fill(n, 99))
			if got := r.do(spc.AppendRead(nil, 0, 4, false), nil, 2048).good(); !bytes.Equal(got.data, data) {
				t.Errorf("%d bytes of 2048: other blocks than those sent have changed", n)
			}
		}
	}
	// WRITE with more: the CDB's length counts.
	r.do(spc.AppendWrite(nil, 0, 1, false), fill(2048, 50), 0).good()
	got := r.do(spc.AppendRead(nil, 0, 4, false), nil, 2048).good()
	if !bytes.Equal(got.data[:512], fill(2048, 50)[:512]) || !bytes.Equal(got.data[512:], data[512:]) {
		t.Error("a WRITE with surplus data wrote beyond its blocks")
	}
}

func TestRanges(t *testing.T) {
	r := newRig(t, Config{})
	const blocks = 8 << 20 / 512
	r.do(spc.AppendRead(nil, blocks-1, 1, false), nil, 512).good()
	r.do(spc.AppendRead(nil, blocks, 0, false), nil, 0).good()
	for _, cdb := range [][]byte{
		spc.AppendRead(nil, blocks, 1, false),
		spc.AppendRead(nil, blocks-1, 2, false),
		spc.AppendRead(nil, blocks+1, 0, false),
		spc.AppendRead(nil, 1<<64-1, 1, false),
		spc.AppendRead(nil, 1<<64-1, 1<<32-1, false),
		spc.AppendSyncCache(nil, blocks+1, 1, false),
		spc.AppendPrefetch(nil, blocks, 1, false),
	} {
		r.do(cdb, nil, 4096).illegal(spc.ASCLBAOutOfRange)
	}
	r.do(spc.AppendWrite(nil, blocks, 1, false), make([]byte, 512), 0).illegal(spc.ASCLBAOutOfRange)
	cdb := spc.AppendRead(nil, 0, 1, false)
	cdb[1] = 0x20
	r.do(cdb, nil, 512).illegal(spc.ASCInvalidFieldInCDB)
	r.do(spc.AppendRead(nil, 0, 16<<20/512+1, false), nil, 0).illegal(spc.ASCLBAOutOfRange)
}

func TestUnknownCommands(t *testing.T) {
	r := newRig(t, Config{})
	r.do([]byte{0xFF, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, nil, 0).illegal(spc.ASCInvalidOpcode)
	r.do([]byte{0x1E, 0, 0, 0, 0, 0}, nil, 0).illegal(spc.ASCInvalidOpcode)
	r.do([]byte{0x28, 0, 0}, nil, 0).illegal(spc.ASCInvalidOpcode)
	cdb := make([]byte, 16)
	cdb[0], cdb[1] = 0x9E, 0x1E
	r.do(cdb, nil, 0).illegal(spc.ASCInvalidFieldInCDB)
	// NACA is refused: there is never an ACA condition.
	r.do([]byte{0, 0, 0, 0, 0, 4}, nil, 0).illegal(spc.ASCInvalidFieldInCDB)
	r.do(spc.AppendTestUnitReady(nil), nil, 0, attr(AttrACA)).sense(spc.KeyAborted, spc.ASCInvalidMessage)
}

func TestNoLogicalUnit(t *testing.T) {
	r := newRig(t, Config{})
	n := r.nx[0]
	if got := r.on(n, 7, spc.AppendInquiry(nil, 96), nil, 96).good(); got.data[0] != 0x7F {
		t.Errorf("peripheral byte %02x, want 7f", got.data[0])
	}
	r.on(n, 7, spc.AppendTestUnitReady(nil), nil, 0).illegal(spc.ASCLUNotSupported)
	r.on(n, 7, spc.AppendRead(nil, 0, 1, false), nil, 512).illegal(spc.ASCLUNotSupported)
	got := r.on(n, 7, spc.AppendReportLUNs(nil, 0, 256), nil, 256).good()
	if luns, total, err := spc.ParseLUNList(got.data); err != nil || total != 1 || luns[0] != 0 {
		t.Error(luns, total, err)
	}
	got = r.on(n, 7, spc.AppendRequestSense(nil, true, 252), nil, 252).good()
	if s, err := spc.ParseSense(got.data); err != nil || s.ASC != spc.ASCLUNotSupported {
		t.Error(s, err)
	}
}

func TestReportLUNs(t *testing.T) {
	v := func(name string) LUConfig { return LUConfig{Volume: newNamed(t, name)} }
	a, b, c := v("a"), v("b"), v("c")
	b.LUN, c.LUN = 3, 300
	r := newRig(t, Config{}, c, a, b)
	got := r.do(spc.AppendReportLUNs(nil, 0, 256), nil, 256).good()
	luns, _, err := spc.ParseLUNList(got.data)
	if err != nil || len(luns) != 3 || luns[0] != 0 || luns[1] != 3<<48 || luns[2] != 0x412C<<48 {
		t.Errorf("%x, %v", luns, err)
	}
	got = r.do(spc.AppendReportLUNs(nil, 2, 256), nil, 256).good()
	if binary.BigEndian.Uint32(got.data) != 32 || binary.BigEndian.Uint64(got.data[32:]) != spc.WellKnownReportLUNs {
		t.Errorf("%x", got.data)
	}
	got = r.do(spc.AppendReportLUNs(nil, 0, 16), nil, 16).good()
	if len(got.data) != 16 || binary.BigEndian.Uint32(got.data) != 24 {
		t.Errorf("a cut list must tell its whole length: %x", got.data)
	}
	r.do(spc.AppendReportLUNs(nil, 0, 15), nil, 15).illegal(spc.ASCInvalidFieldInCDB)
	r.do(spc.AppendReportLUNs(nil, 9, 256), nil, 256).illegal(spc.ASCInvalidFieldInCDB)
}

// TestLUNsChangeMeanwhile: an initiator whose REPORT LUNS has missed a unit is told that the units have changed.
func TestLUNsChangeMeanwhile(t *testing.T) {
	r := newRig(t, Config{}, LUConfig{Volume: newNamed(t, "a")})
	i := r.nx[0].itls.Load().find(0)
	i.lu.mu.Lock()
	answer := make(chan *result)
	go func() { answer <- r.do(spc.AppendReportLUNs(nil, 0, 64), nil, 64) }()
	await.True(t, "it clears the unit attention", func() bool { return await.Within((*itl).clear) > 0 })
	// What AddLUN does.
	lu, err := newLU(r.dev, LUConfig{LUN: 4, Volume: newNamed(t, "b")})
	if err != nil {
		t.Fatal(err)
	}
	r.dev.mu.Lock()
	r.dev.setLocked(4, lu)
	r.dev.mu.Unlock()
	i.add(spc.ASCLUNsChanged)
	i.lu.mu.Unlock()
	luns, _, err := spc.ParseLUNList((<-answer).good().data)
	if err != nil || len(luns) != 2 && i.pending.Load() == 0 {
		t.Errorf("%x, %v, and no unit attention", luns, err)
	}
}

func TestInquiry(t *testing.T) {
	r := newRig(t, Config{})
	got := r.do(spc.AppendInquiry(nil, 255), nil, 255).good()
	q, err := spc.ParseInquiryData(got.data)
	if err != nil || q.Type != 0 || q.Version != 6 || q.Vendor != "SOFTISER" || !q.Queueing {
		t.Error(q, err)
	}
	got = r.do(spc.AppendInquiryVPD(nil, spc.VPDSupported, 255), nil, 255).good()
	pages, err := spc.VPDPayload(got.data, spc.VPDSupported)
	if err != nil {
		t.Fatal(err)
	}
	for i, p := range pages {
		if i > 0 && p <= pages[i-1] {
			t.Error("VPD pages are not in ascending order")
		}
		full := r.do(spc.AppendInquiryVPD(nil, p, 4096), nil, 4096).good()
		if _, err := spc.VPDPayload(full.data, p); err != nil {
			t.Error(err)
		}
		cut := r.do(spc.AppendInquiryVPD(nil, p, 5), nil, 4096).good()
		if len(cut.data) != 5 || !bytes.Equal(cut.data, full.data[:5]) {
			t.Errorf("page %02x cut to 5 bytes: %x", p, cut.data)
		}
	}
	r.do(spc.AppendInquiryVPD(nil, 0x55, 255), nil, 255).illegal(spc.ASCInvalidFieldInCDB)
	r.do([]byte{0x12, 0, 0x80, 0, 96, 0}, nil, 96).illegal(spc.ASCInvalidFieldInCDB)
	r.do([]byte{0x12, 2, 0, 0, 96, 0}, nil, 96).illegal(spc.ASCInvalidFieldInCDB)
	got = r.do(spc.AppendInquiryVPD(nil, spc.VPDIdentification, 255), nil, 255).good()
	p, _ := spc.VPDPayload(got.data, spc.VPDIdentification)
	ds, err := spc.ParseDesignators(p)
	if err != nil || ds[0].Type != spc.DesignatorNAA || ds[0].ID[0]>>4 != 6 || len(ds[0].ID) != 16 {
		t.Error(ds, err)
	}
}

// TestPortDesignators: page 83h tells the relative port and the group of the port that the command came through.
func TestPortDesignators(t *testing.T) {
	r := newRig(t, Config{Groups: []PortGroup{{ID: 7, Ports: []uint16{1}}, {ID: 3, Ports: []uint16{0x205, 6}}}})
	n, err := r.dev.NewNexus(NexusConfig{Initiator: "iqn.1994-05.com.example:other", RelPort: 0x205})
	if err != nil {
		t.Fatal(err)
	}
	r.nx = append(r.nx, n)
	p, err := spc.VPDPayload(r.on(n, 0, spc.AppendInquiryVPD(nil, spc.VPDIdentification, 255), nil, 255).good().data, spc.VPDIdentification)
	if err != nil {
		t.Fatal(err)
	}
	ds, err := spc.ParseDesignators(p)
	if err != nil {
		t.Fatal(err)
	}
	got := map[byte]string{}
	for _, d := range ds {
		if d.Association == spc.AssocPort {
			got[d.Type] = string(d.ID)
		}
	}
	if got[spc.DesignatorRelPort] != "\x00\x00\x02\x05" || got[spc.DesignatorPortGroup] != "\x00\x00\x00\x03" || !strings.Contains(got[spc.DesignatorName], ",t,0x0003") {
		t.Errorf("%q", got)
	}
}

// infoVolume says something else of itself than it is.
type infoVolume struct {
	blockdev.Device
	info func(*blockdev.Info)
}

func (v infoVolume) Info() blockdev.Info {
	i := v.Device.Info()
	v.info(&i)
	return i
}

// TestWhatPagesTell: provisioning (B2h), LBPME of READ CAPACITY and V_SUP (86h) are as the volume is, and do not
// contradict each other; the task attributes are those that there are.
func TestWhatPagesTell(t *testing.T) {
	for _, c := range []struct {
		thin, discard, cache bool
		typ                  byte
	}{{false, false, true, 0}, {false, true, false, 1}, {true, true, true, 2}, {true, false, false, 0}} {
		r := newRig(t, Config{}, LUConfig{Volume: infoVolume{newNamed(t, "a"), func(i *blockdev.Info) {
			i.Thin, i.Discard, i.ZeroesOnTrim, i.WriteCache = c.thin, c.discard, c.discard, c.cache
		}}})
		page := func(code byte) []byte {
			t.Helper()
			p, err := spc.VPDPayload(r.do(spc.AppendInquiryVPD(nil, code, 255), nil, 255).good().data, code)
			if err != nil {
				t.Fatal(err)
			}
			return p
		}
		want := spc.Provisioning{Unmap: c.discard, WriteSame16: c.discard, WriteSame10: c.discard, ReadZeroes: c.discard, Type: c.typ}
		if got, err := spc.ParseProvisioning(page(spc.VPDProvisioning)); err != nil || got != want {
			t.Errorf("%+v: %+v, %v", c, got, err)
		}
		size, err := spc.ParseCapacity16(r.do(spc.AppendReadCapacity16(nil, 32), nil, 32).good().data)
		if err != nil || size.Provisioned != c.discard || size.ReadZeroes != c.discard {
			t.Errorf("%+v: %+v, %v", c, size, err)
		}
		ext := page(spc.VPDExtended)
		if len(ext) != 60 || ext[1] != 0x07 || (ext[2] == 1) != c.cache {
			t.Errorf("%+v: % x", c, ext)
		}
	}
}

func TestModePages(t *testing.T) {
	r := newRig(t, Config{})
	all := r.do(spc.AppendModeSense6(nil, true, 0, 0x3F, 0, 255), nil, 255).good().data
	if int(all[0])+1 != len(all) {
		t.Errorf("mode data length %d of %d bytes", all[0], len(all))
	}
	for at := 4; at < len(all); at += 2 + int(all[at+1]) {
		one := r.do(spc.AppendModeSense6(nil, true, 0, all[at]&0x3F, 0, 255), nil, 255).good().data
		if !bytes.Equal(one[4:], all[at:at+2+int(all[at+1])]) {
			t.Errorf("page %02x alone differs from the same page among all", all[at])
		}
	}
	long := r.do(spc.AppendModeSense10(nil, false, 0, 0x0A, 0, 255), nil, 255).good().data
	if binary.BigEndian.Uint16(long[6:]) != 8 || binary.BigEndian.Uint32(long[8:]) != 8<<20/512 {
		t.Errorf("block descriptor: %x", long)
	}
	r.do(spc.AppendModeSense6(nil, true, 0, 0x2A, 0, 255), nil, 255).illegal(spc.ASCInvalidFieldInCDB)
	r.do(spc.AppendModeSense6(nil, true, 3, 0x3F, 0, 255), nil, 255).illegal(spc.ASCSavingNotSupported)

	// SWP: writes are refused, MODE SENSE shows WP, the other nexus learns it.
	page := r.do(spc.AppendModeSense6(nil, true, 0, 0x0A, 0, 255), nil, 255).good().data
	set := append([]byte(nil), page...)
	set[0], set[2] = 0, 0
	set[4+4] |= 0x08
	r.do(spc.AppendModeSelect6(nil, false, byte(len(set))), set, 0).good()
	r.do(spc.AppendWrite(nil, 0, 1, false), make([]byte, 512), 0).sense(spc.KeyDataProtect, spc.ASCWriteProtectedSW)
	if got := r.do(spc.AppendModeSense6(nil, true, 0, 0x0A, 0, 255), nil, 255).good().data; got[2]&0x80 == 0 {
		t.Error("WP is not set under SWP")
	}
	r.on(r.nx[1], 0, spc.AppendTestUnitReady(nil), nil, 0).sense(spc.KeyUnitAttention, spc.ASCModeChanged)
	set[4+4] &^= 0x08
	set[4+2] |= 0x04 // D_SENSE
	r.do(spc.AppendModeSelect6(nil, false, byte(len(set))), set, 0, immediate(len(set))).good()
	r.do(spc.AppendWrite(nil, 0, 1, false), make([]byte, 512), 0).good()
	if got := r.do([]byte{0xC0, 0, 0, 0, 0, 0}, nil, 0); got.raw[0] != 0x72 {
		t.Errorf("sense of a CDB that has no length is not in descriptor format: % x", got.raw)
	} else if got := r.do(spc.AppendModeSense6(nil, true, 0, 0x2A, 0, 255), nil, 255); got.raw[0] != 0x72 {
		t.Errorf("sense is not in descriptor format: % x", got.raw)
	}
	// What cannot change is refused.
	set[4+3] |= 0x40
	r.do(spc.AppendModeSelect6(nil, false, byte(len(set))), set, 0).illegal(spc.ASCInvalidFieldInParam)
	r.do(spc.AppendModeSelect6(nil, false, 3), set[:3], 0).illegal(spc.ASCParameterListLength)
	r.do(spc.AppendModeSelect6(nil, false, 10), set[:10], 0).illegal(spc.ASCParameterListLength)
}

// TestModeSubpages: subpage FFh asks for all subpages, 3Fh/00h for none of them.
func TestModeSubpages(t *testing.T) {
	r := newRig(t, Config{}, LUConfig{Volume: newPooled(t)})
	for _, c := range []struct {
		page, sub byte
		want      string // codes and subpages
	}{
		{0x3F, 0x00, "01/00 08/00 0a/00 1c/00"},
		{0x3F, 0xFF, "01/00 08/00 0a/00 1c/00 1c/02"},
		{0x1C, 0x00, "1c/00"},
		{0x1C, 0x02, "1c/02"},
		{0x1C, 0xFF, "1c/00 1c/02"},
		{0x08, 0xFF, "08/00"},
	} {
		for pc := range byte(3) {
			b := r.do(spc.AppendModeSense10(nil, true, pc, c.page, c.sub, 1024), nil, 1024).good().data
			if int(binary.BigEndian.Uint16(b)) != len(b)-2 {
				t.Errorf("length %d of %d bytes", binary.BigEndian.Uint16(b), len(b))
			}
			var got []string
			for b = b[8:]; len(b) > 0; {
				sub, n := byte(0), 2+int(b[1])
				if b[0]&0x40 != 0 {
					sub, n = b[1], 4+int(binary.BigEndian.Uint16(b[2:]))
				}
				got = append(got, fmt.Sprintf("%02x/%02x", b[0]&0x3F, sub))
				b = b[n:]
			}
			if strings.Join(got, " ") != c.want {
				t.Errorf("page %02x/%02x: %v, want %s", c.page, c.sub, got, c.want)
			}
		}
	}
	for _, c := range []struct {
		page, sub byte
		field     uint16
	}{{0x3F, 0x01, 3}, {0x3F, 0x02, 3}, {0x0A, 0x01, 3}, {0x1C, 0x01, 3}, {0x2A, 0x00, 2}, {0x2A, 0xFF, 2}} {
		got := r.do(spc.AppendModeSense6(nil, true, 0, c.page, c.sub, 255), nil, 255).illegal(spc.ASCInvalidFieldInCDB)
		if got.sd.Field != c.field {
			t.Errorf("page %02x/%02x: field %d, want %d", c.page, c.sub, got.sd.Field, c.field)
		}
	}
}

func TestCapacity(t *testing.T) {
	r := newRig(t, Config{}, LUConfig{Volume: newVolume(t, 8<<20, 4096)})
	c10, ok, err := spc.ParseCapacity10(r.do(spc.AppendReadCapacity10(nil), nil, 8).good().data)
	if err != nil || !ok || c10.Blocks != 2048 || c10.BlockSize != 4096 {
		t.Error(c10, ok, err)
	}
	c16, err := spc.ParseCapacity16(r.do(spc.AppendReadCapacity16(nil, 32), nil, 32).good().data)
	if err != nil || c16.Blocks != 2048 || c16.BlockSize != 4096 {
		t.Error(c16, err)
	}
	if got := r.do(spc.AppendReadCapacity16(nil, 12), nil, 32).good(); len(got.data) != 12 {
		t.Errorf("allocation length 12: %d bytes", len(got.data))
	}
	// An address means something only with PMI.
	cdb := spc.AppendReadCapacity10(nil)
	cdb[5] = 1
	r.do(cdb, nil, 8).illegal(spc.ASCInvalidFieldInCDB)
	cdb[8] = 1
	r.do(cdb, nil, 8).good()
}

func TestLegacyReservation(t *testing.T) {
	r := newRig(t, Config{})
	reserve, release := []byte{0x16, 0, 0, 0, 0, 0}, []byte{0x17, 0, 0, 0, 0, 0}
	a, b := r.nx[0], r.nx[1]
	r.on(a, 0, reserve, nil, 0).good()
	r.on(a, 0, reserve, nil, 0).good()
	r.on(b, 0, reserve, nil, 0).is(spc.StatusReservationConflict)
	r.on(b, 0, spc.AppendRead(nil, 0, 1, false), nil, 512).is(spc.StatusReservationConflict)
	r.on(b, 0, release, nil, 0).good()
	r.on(b, 0, spc.AppendWrite(nil, 0, 1, false), make([]byte, 512), 0).is(spc.StatusReservationConflict)
	r.on(b, 0, spc.AppendInquiry(nil, 36), nil, 36).good()
	r.on(a, 0, release, nil, 0).good()
	r.on(b, 0, spc.AppendRead(nil, 0, 1, false), nil, 512).good()
	r.on(b, 0, reserve, nil, 0).good()
	r.dev.CloseNexus(b)
	r.nx = r.nx[:1]
	r.on(a, 0, spc.AppendRead(nil, 0, 1, false), nil, 512).good()
}
