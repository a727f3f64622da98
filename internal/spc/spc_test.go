package spc

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"reflect"
	"strings"
	"testing"
)

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestCDBBytes(t *testing.T) {
	for _, c := range []struct {
		name string
		got  []byte
		want string
	}{
		{"read10", AppendRead(nil, 0x01020304, 0x0506, true), "28 08 01020304 00 0506 00"},
		{"read16 by lba", AppendRead(nil, 1<<32, 1, false), "88 00 0000000100000000 00000001 00 00"},
		{"read16 by length", AppendRead(nil, 0, 65536, false), "88 00 0000000000000000 00010000 00 00"},
		{"write10", AppendWrite(nil, 5, 8, false), "2a 00 00000005 00 0008 00"},
		{"verify10", AppendVerify(nil, 5, 8, 1), "2f 02 00000005 00 0008 00"},
		{"write same", AppendWriteSame16(nil, 9, 2, FlagUnmap|FlagNDOB), "93 09 0000000000000009 00000002 00 00"},
		{"caw", AppendCompareAndWrite(nil, 7, 3, false), "89 00 0000000000000007 000000 03 00 00"},
		{"sync", AppendSyncCache(nil, 0, 0, false), "35 00 00000000 00 0000 00"},
		{"atomic", AppendWriteAtomic16(nil, 7, 3, false), "9c 00 0000000000000007 0000 0003 00 00"},
		{"inquiry", AppendInquiry(nil, 96), "12 00 00 0060 00"},
		{"vpd", AppendInquiryVPD(nil, 0xB0, 255), "12 01 b0 00ff 00"},
		{"rc16", AppendReadCapacity16(nil, 32), "9e 10 0000000000000000 00000020 00 00"},
		{"luns", AppendReportLUNs(nil, 2, 4096), "a0 00 02 000000 00001000 00 00"},
		{"rtpg", AppendReportTargetPortGroups(nil, true, 64), "a3 2a 00 000000 00000040 00 00"},
		{"rsoc", AppendReportOpcodes(nil, true, 2, OpServiceActionIn, 0x10, 64), "a3 0c 82 9e 0010 00000040 00 00"},
		{"unmap", AppendUnmap(nil, 24), "42 00 00000000 00 0018 00"},
		{"mode sense", AppendModeSense6(nil, true, 1, 0x3F, 0, 255), "1a 08 7f 00 ff 00"},
		{"prout", AppendPersistOut(nil, SAProutReserve, 5, 24), "5f 01 05 0000 00000018 00"},
	} {
		if !bytes.Equal(c.got, unhex(t, c.want)) {
			t.Errorf("%s: got %x, want %s", c.name, c.got, c.want)
		}
		if n := CDBLen(c.got); n != len(c.got) {
			t.Errorf("%s: CDBLen %d, want %d", c.name, n, len(c.got))
		}
	}
}

func TestParseIO(t *testing.T) {
	for _, c := range []struct {
		cdb  string
		want IO
	}{
		{"08 1f ffff 00 00", IO{0x1FFFFF, 256, 0}},
		{"08 e0 0001 07 00", IO{1, 7, 0}},
		{"28 f8 01020304 00 0506 00", IO{0x01020304, 0x0506, 0xF8}},
		{"a8 18 01020304 00000506 00 00", IO{0x01020304, 0x0506, 0x18}},
		{"88 08 0102030405060708 090a0b0c 00 00", IO{0x0102030405060708, 0x090A0B0C, 8}},
		{"7f 00 0000000000 18 000d 08 00 0102030405060708 00000000 00000000 0a0b0c0d", IO{0x0102030405060708, 0x0A0B0C0D, 8}},
	} {
		b := unhex(t, c.cdb)
		if n := CDBLen(b); n != len(b) {
			t.Fatalf("%s: CDBLen %d, want %d", c.cdb, n, len(b))
		}
		if got := ParseIO(b); got != c.want {
			t.Errorf("%s: got %+v, want %+v", c.cdb, got, c.want)
		}
	}
	if io := (IO{Flags: 0xFE}); io.Protect() != 7 || !io.DPO() || !io.FUA() || io.ByteCheck() != 3 {
		t.Error("flag accessors")
	}
}

func TestSense(t *testing.T) {
	for _, c := range []struct {
		s           Sense
		fixed, desc string
	}{
		{Sense{Key: KeyIllegalRequest, ASC: ASCInvalidOpcode},
			"70 00 05 00000000 0a 00000000 2000 00 000000", "72 05 2000 000000 00"},
		{Sense{Key: KeyMiscompare, ASC: ASCMiscompare, InfoValid: true, Info: 515},
			"f0 00 0e 00000203 0a 00000000 1d00 00 000000", "72 0e 1d00 000000 0c 000a8000 0000000000000203"},
		{Sense{Key: KeyCopyAborted, ASC: ASCUnrecoveredRead, InfoValid: true, Info: 9, SpecificValid: true, Specific: 3},
			"f0 00 0a 00000009 0a 00000003 1100 00 000000", "72 0a 1100 000000 18 000a8000 0000000000000009 010a0000 0000000000000003"},
		{Sense{Key: KeyIllegalRequest, ASC: ASCInvalidFieldInCDB, FieldValid: true, InCDB: true, BitValid: true, Bit: 5, Field: 2},
			"70 00 05 00000000 0a 00000000 2400 00 cd0002", "72 05 2400 000000 08 02060000 cd0002 00"},
		{Sense{Key: KeyNotReady, ASC: ASCSanitizeInProgress, ProgressValid: true, Progress: 0x8000},
			"70 00 02 00000000 0a 00000000 041b 00 808000", "72 02 041b 000000 08 02060000 808000 00"},
		{Sense{Key: KeyMedium, ASC: ASCUnrecoveredRead, Deferred: true},
			"71 00 03 00000000 0a 00000000 1100 00 000000", "73 03 1100 000000 00"},
	} {
		f, d := c.s.AppendFixed(nil), c.s.AppendDescriptor(nil)
		if !bytes.Equal(f, unhex(t, c.fixed)) {
			t.Errorf("%v: fixed %x, want %s", c.s, f, c.fixed)
		}
		if !bytes.Equal(d, unhex(t, c.desc)) {
			t.Errorf("%v: descriptor %x, want %s", c.s, d, c.desc)
		}
		for _, b := range [][]byte{f, d} {
			got, err := ParseSense(b)
			if err != nil || got != c.s {
				t.Errorf("%x: parsed %+v, %v, want %+v", b, got, err, c.s)
			}
		}
	}
	// Information beyond 32 bits exists in descriptor format only.
	s := Sense{Key: KeyMedium, InfoValid: true, Info: 1 << 40}
	if f := s.AppendFixed(nil); f[0] != 0x70 {
		t.Errorf("fixed format claims VALID for 41 bits of information: %x", f)
	}
	for _, bad := range []string{"", "70", "7e 00 00", "72 05 20"} {
		if _, err := ParseSense(unhex(t, bad)); err == nil {
			t.Errorf("%q parsed", bad)
		}
	}
}

func TestSenseError(t *testing.T) {
	if err := NewSenseError(OpRead10, StatusConditionMet, nil); err != nil {
		t.Error(err)
	}
	s := Sense{Key: KeyMedium, ASC: ASCUnrecoveredRead}
	err := NewSenseError(OpRead10, StatusCheckCondition, s.AppendFixed(nil))
	if got, want := err.Error(), "scsi: READ(10) failed: MEDIUM ERROR: unrecovered read error (3/11/00)"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	err = NewSenseError(OpWrite16, StatusReservationConflict, nil)
	if got, want := err.Error(), "scsi: WRITE(16) failed with status RESERVATION CONFLICT"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestPagesRoundTrip(t *testing.T) {
	q := InquiryData{Version: 6, HiSup: true, TPGS: 3, ThirdParty: true, MultiPort: true, Queueing: true, Removable: true,
		Vendor: "SOFTISER", Product: "disk0", Revision: "1.0", Epoch: [16]byte{15: 1}, Descriptors: []uint16{VersionSPC4, VersionSBC3}}
	b := q.AppendInquiryData(nil)
	if got, err := ParseInquiryData(b); err != nil || !reflect.DeepEqual(got, q) {
		t.Errorf("inquiry: %+v, %v", got, err)
	}
	if int(b[4])+5 != len(b) {
		t.Errorf("additional length %d of %d bytes", b[4], len(b))
	}
	l := BlockLimits{true, 255, 1, 2, 3, 4, 5, 6, 7, true, 8, 9, 10, 11, 12, 13, 14}
	p := l.Append(nil)
	if got, err := ParseBlockLimits(p); err != nil || got != l || len(p) != 60 {
		t.Errorf("block limits: %+v, %v, %d bytes", got, err, len(p))
	}
	pr := Provisioning{3, true, true, true, true, false, 2}
	if got, err := ParseProvisioning(pr.Append(nil)); err != nil || got != pr {
		t.Errorf("provisioning: %+v, %v", got, err)
	}
	bd := BlockDevice{1, 1, true}
	if got, err := ParseBlockDevice(bd.Append(nil)); err != nil || got != bd {
		t.Errorf("block device: %+v, %v", got, err)
	}
	c := Capacity{Blocks: 1 << 33, BlockSize: 512, PhysExponent: 3, Provisioned: true, ReadZeroes: true, LowestAligned: 7}
	if got, err := ParseCapacity16(c.Append16(nil)); err != nil || got != c {
		t.Errorf("capacity 16: %+v, %v", got, err)
	}
	if _, ok, err := ParseCapacity10(c.Append10(nil)); err != nil || ok {
		t.Errorf("capacity 10 of a large device: ok %v, %v", ok, err)
	}
	ds := []Designator{
		{CodeSet: CodeSetBinary, Type: DesignatorNAA, ID: bytes.Repeat([]byte{0x60}, 16)},
		{CodeSet: CodeSetUTF8, Association: AssocPort, Type: DesignatorName, Protocol: ProtocolISCSI, ID: NameString("iqn.x,t,0x0001")},
	}
	var enc []byte
	for i := range ds {
		enc = ds[i].Append(enc)
	}
	if got, err := ParseDesignators(enc); err != nil || !reflect.DeepEqual(got, ds) {
		t.Errorf("designators: %+v, %v", got, err)
	}
	page := AppendVPD(nil, 0, VPDIdentification, enc)
	if got, err := VPDPayload(page, VPDIdentification); err != nil || !bytes.Equal(got, enc) {
		t.Errorf("VPD payload: %x, %v", got, err)
	}
	if _, err := VPDPayload(page[:len(page)-1], VPDIdentification); err == nil {
		t.Error("a cut VPD page parsed")
	}
}

func TestLUN(t *testing.T) {
	for _, n := range []uint16{0, 1, 255, 256, 16383} {
		if got, ok := DecodeLUN(EncodeLUN(n)); !ok || got != n {
			t.Errorf("%d: %d, %v", n, got, ok)
		}
	}
	for _, w := range []uint64{1, 0x0100 << 48, 0xC101 << 48, 0x8000 << 48, 1 << 32} {
		if n, ok := DecodeLUN(w); ok {
			t.Errorf("%016x decoded as %d", w, n)
		}
	}
	l := []uint64{EncodeLUN(0), EncodeLUN(300)}
	got, total, err := ParseLUNList(AppendLUNList(nil, l))
	if err != nil || total != 2 || !reflect.DeepEqual(got, l) {
		t.Error(got, total, err)
	}
}

func TestParameterLists(t *testing.T) {
	rs := []Range{{1, 2}, {1 << 40, 0}}
	b := AppendUnmapList(nil, rs)
	n, err := UnmapDescriptors(b)
	if err != nil || n != 2 || UnmapDescriptor(b, 1) != rs[1] {
		t.Error(n, err)
	}
	if _, err := UnmapDescriptors(b[:len(b)-1]); err == nil {
		t.Error("a cut UNMAP list parsed")
	}
	runs := []LBAStatus{{Range{0, 8}, LBAMapped}, {Range{8, 8}, LBADeallocated}}
	if got, err := ParseLBAStatus(AppendLBAStatus(nil, runs)); err != nil || !reflect.DeepEqual(got, runs) {
		t.Error(got, err)
	}
	po := PersistOut{1, 2, true, true, true}
	if got, err := ParsePersistOut(po.Append(nil)); err != nil || got != po {
		t.Error(got, err)
	}
	id := AppendTransportID(nil, "iqn.1994-05.com.example:host,i,0x00023d000001")
	rm := RegisterMove{1, 2, true, true, 3, id}
	if got, err := ParseRegisterMove(rm.Append(nil)); err != nil || !reflect.DeepEqual(got, rm) {
		t.Error(got, err)
	}
	fs := []FullStatus{{Key: 0x0102030405060708, AllPorts: true, Holder: true, Type: PRWriteExclusiveRegistrants, RelativePort: 9, Port: "iqn.1994-05.com.example:host"},
		{Key: 1, RelativePort: 2, Port: "iqn.1994-05.com.example:host,i,0x00023d000001"}}
	list := []byte{0, 0, 0, 7, 0, 0, 0, 0}
	for i := range fs {
		list = fs[i].Append(list)
	}
	binary.BigEndian.PutUint32(list[4:], uint32(len(list)-8))
	if want := "0102030405060708 00000000 03 05 00000000 0009 00000024 05000020"; fmt.Sprintf("%x", list[8:36]) != strings.ReplaceAll(want, " ", "") {
		t.Errorf("% x, want %s", list[8:36], want)
	}
	for cut, whole := range map[int]int{0: 2, 1: 1, len(id): 1, 24 + len(id): 1, 25 + len(id): 0} {
		got, err := ParseFullStatus(list[:len(list)-cut])
		if err != nil || len(got) != whole || whole > 0 && !reflect.DeepEqual(got, fs[:whole]) {
			t.Errorf("%d bytes cut off: %+v, %v", cut, got, err)
		}
	}
	if _, err := ParseFullStatus(list[:7]); err == nil {
		t.Error("READ FULL STATUS of 7 bytes parsed")
	}
	if port, n, err := ParseTransportID(id); err != nil || n != len(id) || port != "iqn.1994-05.com.example:host,i,0x00023d000001" {
		t.Error(port, n, err)
	}
}
