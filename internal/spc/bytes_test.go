package spc

import (
	"bytes"
	"encoding/binary"
	"reflect"
	"strings"
	"testing"
)

// coded is a structure with a form of its own on the wire.
type coded struct {
	name, want string
	got        []byte
	parse      func(b []byte) (any, error)
	value      any
	least      int // bytes without which it is refused; 0: all of them
}

// Parameter data, each byte of it another where the field allows.
func TestParameterBytes(t *testing.T) {
	token := bytes.Repeat([]byte{0xA5}, RODTokenLen)
	const lba, blocks = 0x0102030405060708, 0x090A0B0C
	const wireRange = "0102030405060708 090a0b0c 00000000"
	ranges := []Range{{lba, blocks}, {1, 2}}
	const wireRanges = wireRange + "0000000000000001 00000002 00000000"
	pt := PopulateToken{Immed: true, Type: 0x21222324, Timeout: 0x31323334, Ranges: ranges}
	ptType := PopulateToken{TypeSet: true, Type: RODZero}
	wut := WriteUsingToken{Immed: true, Offset: 0x4142434445464748, Token: token, Ranges: ranges}
	rod := RODToken{Type: RODAccessUponReference, ID: 0x1112131415161718, Creator: bytes.Repeat([]byte{0xC4}, 32), Bytes: 0x2122232425262728, Secret: [32]byte{1, 31: 2}}
	info := RODInfo{Action: 0x11, Status: CopyDone, Final: StatusCheckCondition, Sense: []byte{0x70, 0, 5}, Transfer: 0x5152535455565758, Token: token}
	infoNone := RODInfo{Action: 0x10, Status: CopyBackground, Sense: []byte{}}
	head := CopyHeader{ListID: 0x81, ListIDUsage: 2, TargetLen: 0x8283, SegmentLen: 0x84858687, Inline: 0x88898A8B}
	seg := CopySegment{Type: CopyBlockToBlock, DC: true, Src: 0x1112, Dst: 0x1314, Blocks: 0x1516, SrcLBA: 0x2122232425262728, DstLBA: 0x3132333435363738}
	off := CopySegment{Type: CopyBlockOffset, Src: 0x1112, Dst: 0x1314, Bytes: 0x15161718, SrcLBA: 0x2122232425262728, DstLBA: 0x3132333435363738, SrcOff: 0x4142, DstOff: 0x4344}
	format := FormatList{Protection: 7, Flags: FormatFOV | FormatIMMED, Defects: 0x0102}
	formatLong := FormatList{Protection: 2, Interval: 0x93, Flags: FormatIP, Defects: 0x01020304, PatternAt: 8, Security: true, PatternType: 1, Pattern: []byte{0xA1, 0xA2}}
	formatShort := FormatList{Flags: FormatIP, PatternAt: 4, Pattern: []byte{0xA1}}
	pout := PersistOut{Key: lba, ActionKey: 0x1112131415161718, SpecIPT: true}
	poutFlags := PersistOut{AllPorts: true, APTPL: true}
	move := RegisterMove{Key: lba, ActionKey: 0x1112131415161718, Unregister: true, RelativePort: 0x2122, TransportID: []byte{1, 2, 3}}
	moveKept := RegisterMove{APTPL: true, TransportID: []byte{}}
	limits := BlockLimits{true, 0x02, 0x0304, 0x05060708, 0x090A0B0C, 0x0D0E0F10, 0x11121314, 0x15161718, 0x191A1B1C, true, 0x1D1E1F20, 0x2122232425262728, 0x292A2B2C, 0x2D2E2F30, 0x31323334, 0x35363738, 0x393A3B3C}
	limitsOff := BlockLimits{UnmapAlignment: 0x7FFFFFFF}
	capacity := Capacity{Blocks: lba + 1, BlockSize: blocks, PhysExponent: 0xF, Provisioned: true, LowestAligned: 0x3FFE}
	capacityZero := Capacity{Blocks: 1, BlockSize: 512, ReadZeroes: true, LowestAligned: 1}
	naa := Designator{CodeSet: CodeSetBinary, Type: DesignatorNAA, ID: []byte{0x60, 1}, Protocol: ProtocolISCSI}
	port := Designator{CodeSet: CodeSetUTF8, Association: AssocPort, Type: DesignatorName, Protocol: ProtocolISCSI, ID: NameString("iqn")}
	status := []LBAStatus{{Range{lba, blocks}, LBAAnchored}, {Range{1, 2}, LBAMapped}}
	inquiry := InquiryData{Version: 6, ThirdParty: true, Vendor: "SOFTISER", Product: "product of 16 ch", Revision: "1.23"}

	for _, c := range []coded{
		{"POPULATE TOKEN", "002e 01 00 31323334 21222324 0000 0020" + wireRanges, pt.Append(nil), func(b []byte) (any, error) { return ParsePopulateToken(b) }, pt, 0},
		{"POPULATE TOKEN, RTV", "000e 02 00 00000000 ffff0001 0000 0000", ptType.Append(nil), func(b []byte) (any, error) { return ParsePopulateToken(b) }, ptType, 0},
		{"WRITE USING TOKEN", "0236 01 0000000000 4142434445464748" + strings.Repeat("a5", 512) + "000000000000 0020" + wireRanges, wut.Append(nil), func(b []byte) (any, error) { return ParseWriteUsingToken(b) }, wut, 0},
		{"ROD token", "00010000 0000 01f8 1112131415161718" + strings.Repeat("c4", 32) + "0000000000000000 2122232425262728" + strings.Repeat("00", 64) + "01" + strings.Repeat("00", 30) + "02" + strings.Repeat("00", 352),
			rod.Append(nil), func(b []byte) (any, error) { return ParseRODToken(b) }, rod, 0},
		{"RECEIVE ROD TOKEN INFORMATION", "00000225 11 01 0000 00000000 02 03 03 f1 5152535455565758 0000 000000000000 700005 00000202 0000" + strings.Repeat("a5", 512),
			info.Append(nil), func(b []byte) (any, error) { return ParseRODInfo(b) }, info, 39},
		{"RECEIVE ROD TOKEN INFORMATION without token", "00000020 10 12 0000 00000064 00 00 00 f1 0000000000000000 0000 000000000000 00000000",
			infoNone.Append(nil), func(b []byte) (any, error) { return ParseRODInfo(b) }, infoNone, 0},
		{"EXTENDED COPY header", "81 10 8283 00000000 84858687 88898a8b", head.Append(nil), func(b []byte) (any, error) { return ParseCopyHeader(b) }, head, 0},
		{"block to block", "02 02 0018 1112 1314 0000 1516 2122232425262728 3132333435363738", seg.Append(nil),
			func(b []byte) (any, error) { s, _, _, err := ParseCopySegment(b); return s, err }, seg, 0},
		{"block to block with offset", "0a 00 001c 1112 1314 15161718 2122232425262728 3132333435363738 4142 4344", off.Append(nil),
			func(b []byte) (any, error) { s, _, _, err := ParseCopySegment(b); return s, err }, off, 0},
		{"FORMAT UNIT", "07 82 0102", format.Append(nil, false), func(b []byte) (any, error) { return ParseFormatList(b, false) }, format, 0},
		{"FORMAT UNIT, long, pattern", "02 08 00 93 01020304 20 01 0002 a1a2", formatLong.Append(nil, true), func(b []byte) (any, error) { return ParseFormatList(b, true) }, formatLong, 0},
		{"FORMAT UNIT, pattern", "00 08 0000 00 00 0001 a1", formatShort.Append(nil, false), func(b []byte) (any, error) { return ParseFormatList(b, false) }, formatShort, 0},
		{"PERSISTENT RESERVE OUT", "0102030405060708 1112131415161718 00000000 08 000000", pout.Append(nil), func(b []byte) (any, error) { return ParsePersistOut(b) }, pout, 0},
		{"PERSISTENT RESERVE OUT, flags", "0000000000000000 0000000000000000 00000000 05 000000", poutFlags.Append(nil), func(b []byte) (any, error) { return ParsePersistOut(b) }, poutFlags, 0},
		{"REGISTER AND MOVE", "0102030405060708 1112131415161718 00 02 2122 00000003 010203", move.Append(nil), func(b []byte) (any, error) { return ParseRegisterMove(b) }, move, 0},
		{"REGISTER AND MOVE, APTPL", "0000000000000000 0000000000000000 00 01 0000 00000000", moveKept.Append(nil), func(b []byte) (any, error) { return ParseRegisterMove(b) }, moveKept, 0},
		{"block limits", "01 02 0304 05060708 090a0b0c 0d0e0f10 11121314 15161718 191a1b1c 9d1e1f20 2122232425262728 292a2b2c 2d2e2f30 31323334 35363738 393a3b3c",
			limits.Append(nil), func(b []byte) (any, error) { return ParseBlockLimits(b) }, limits, 12},
		{"block limits, alignment not valid", strings.Repeat("00", 28) + "7fffffff" + strings.Repeat("00", 28), limitsOff.Append(nil), func(b []byte) (any, error) { return ParseBlockLimits(b) }, limitsOff, 12},
		{"READ CAPACITY(16)", "0102030405060708 090a0b0c 00 0f bffe" + strings.Repeat("00", 16), capacity.Append16(nil), func(b []byte) (any, error) { return ParseCapacity16(b) }, capacity, 12},
		{"READ CAPACITY(16), LBPRZ", "0000000000000000 00000200 00 00 4001" + strings.Repeat("00", 16), capacityZero.Append16(nil), func(b []byte) (any, error) { return ParseCapacity16(b) }, capacityZero, 12},
		{"block device characteristics", "0102 00 c0 02" + strings.Repeat("00", 55), (&BlockDevice{0x0102, 3, true}).Append(nil), func(b []byte) (any, error) { return ParseBlockDevice(b) }, BlockDevice{0x0102, 3, true}, 5},
		{"logical block provisioning", "11 a2 07 00", (&Provisioning{0x11, true, false, true, false, true, 7}).Append(nil), func(b []byte) (any, error) { return ParseProvisioning(b) }, Provisioning{0x11, true, false, true, false, true, 7}, 0},
		{"logical block provisioning, LBPRZ", "00 44 02 00", (&Provisioning{0, false, true, false, true, false, 2}).Append(nil), func(b []byte) (any, error) { return ParseProvisioning(b) }, Provisioning{0, false, true, false, true, false, 2}, 0},
		{"GET LBA STATUS", "00000024 00000000 0102030405060708 090a0b0c 02 000000 0000000000000001 00000002 00 000000", AppendLBAStatus(nil, status), func(b []byte) (any, error) { return ParseLBAStatus(b) }, status, 8},
		{"UNMAP", "0026 0020 00000000" + wireRanges, AppendUnmapList(nil, ranges), func(b []byte) (any, error) { return UnmapDescriptors(b) }, 2, 0},
		{"REPORT LUNS", "00000010 00000000 0005000000000000 412c000000000000", AppendLUNList(nil, []uint64{EncodeLUN(5), EncodeLUN(300)}),
			func(b []byte) (any, error) { l, _, err := ParseLUNList(b); return l, err }, []uint64{5 << 48, 0x412C << 48}, 8},
		{"designators", "01 03 00 02 6001" + "53 98 00 04 69716e00", port.Append(naa.Append(nil)), func(b []byte) (any, error) { return ParseDesignators(b) },
			[]Designator{{CodeSet: CodeSetBinary, Type: DesignatorNAA, ID: []byte{0x60, 1}}, port}, 0},
		{"CSCD descriptor", "e4 00 0000 01 03 00 02 6001" + strings.Repeat("00", 18) + "00 010200", AppendCopyTarget(nil, naa, 0x010200), nil, nil, 0},
		{"VPD page", "01 83 0102" + strings.Repeat("5a", 0x102), AppendVPD(nil, 1, 0x83, bytes.Repeat([]byte{0x5A}, 0x102)), func(b []byte) (any, error) { return VPDPayload(b, 0x83) }, bytes.Repeat([]byte{0x5A}, 0x102), 0},
		{"TransportID", "05 00 0014 69716e2e61" + strings.Repeat("00", 15), AppendTransportID(nil, "iqn.a"), func(b []byte) (any, error) { s, _, err := ParseTransportID(b); return s, err }, "iqn.a", 0},
		{"TransportID of a port", "45 00 0018" + hexOf("iqn.a,i,0x00023d000001") + "0000", AppendTransportID(nil, "iqn.a,i,0x00023d000001"), func(b []byte) (any, error) { s, _, err := ParseTransportID(b); return s, err }, "iqn.a,i,0x00023d000001", 0},
		{"standard INQUIRY", "00 00 06 02 5b 08 00 00" + hexOf("SOFTISER") + hexOf("product of 16 ch") + hexOf("1.23"), inquiry.AppendInquiryData(nil)[:36], nil, nil, 0},
	} {
		want := unhex(t, c.want)
		if !bytes.Equal(c.got, want) {
			t.Errorf("%s:\n%x, want\n%x", c.name, c.got, want)
		}
		if c.parse == nil {
			continue
		}
		if got, err := c.parse(want); err != nil || !reflect.DeepEqual(got, c.value) {
			t.Errorf("%s is read as\n%+v, want\n%+v, %v", c.name, got, c.value, err)
		}
		least := c.least
		if least == 0 {
			least = len(want)
		}
		if _, err := c.parse(want[:least-1]); err == nil {
			t.Errorf("%s of %d bytes is read", c.name, least-1)
		}
		if _, err := c.parse(want[:least]); err != nil {
			t.Errorf("%s of %d bytes: %v", c.name, least, err)
		}
	}
}

func hexOf(s string) string {
	var b strings.Builder
	for _, c := range []byte(s) {
		b.WriteByte("0123456789abcdef"[c>>4])
		b.WriteByte("0123456789abcdef"[c&15])
	}
	return b.String()
}

// Standard INQUIRY data (SPC-4 §6.6.2) with everything set, and what is left when it is cut.
func TestInquiryBytes(t *testing.T) {
	all := InquiryData{Qualifier: 3, Type: 0x1F, Removable: true, Version: 6, HiSup: true, TPGS: 3, ThirdParty: true, MultiPort: true, Queueing: true,
		Vendor: "SOFTISER", Product: "product of 16 ch", Revision: "1.23", Epoch: [16]byte{1, 15: 2}, Descriptors: []uint16{0x1112, 2, 3, 4, 5, 6, 7, 0x1819}}
	const head = "7f 80 06 12 5b 38 10 02"
	names := hexOf("SOFTISER") + hexOf("product of 16 ch") + hexOf("1.23")
	want := unhex(t, head+names+hexOf("CEP1")+"01"+strings.Repeat("00", 14)+"02 0000 1112 0002 0003 0004 0005 0006 0007 1819"+strings.Repeat("00", 22))
	b := all.AppendInquiryData(nil)
	if !bytes.Equal(b, want) {
		t.Errorf("%x, want\n%x", b, want)
	}
	nine := all
	nine.Descriptors = append(nine.Descriptors[:8:8], 9)
	if b := nine.AppendInquiryData(nil); !bytes.Equal(b, want) {
		t.Errorf("with a ninth version descriptor %x", b)
	}
	for _, n := range []int{36, 55, 56, 59, 60, 61, 73, 74, 96} {
		cut := all
		if n < 56 {
			cut.Epoch = [16]byte{}
		}
		cut.Descriptors = all.Descriptors[:max(0, min(8, (n-58)/2))]
		if len(cut.Descriptors) == 0 {
			cut.Descriptors = nil
		}
		if got, err := ParseInquiryData(want[:n]); err != nil || !reflect.DeepEqual(got, cut) {
			t.Errorf("%d bytes arrived: %+v, %v", n, got, err)
		}
		told := bytes.Clone(want)
		told[4] = byte(n - 5)
		told[74] = 1 // not a descriptor any more
		if got, err := ParseInquiryData(told); err != nil || !reflect.DeepEqual(got, cut) {
			t.Errorf("%d bytes are told: %+v, %v", n, got, err)
		}
	}
	if _, err := ParseInquiryData(want[:35]); err == nil {
		t.Error("35 bytes are read")
	}
	other := bytes.Clone(want)
	other[39] = '2'
	if got, err := ParseInquiryData(other); err != nil || got.Epoch != [16]byte{} {
		t.Errorf("another vendor's bytes are taken for our epoch: %x, %v", got.Epoch, err)
	}
	if got, err := ParseInquiryData(make([]byte, 36)); err != nil || !reflect.DeepEqual(got, InquiryData{}) {
		t.Errorf("%+v, %v", got, err)
	}
	odd := InquiryData{Vendor: "\x1f ~\x7f\xe9", Product: strings.Repeat("x", 17)}
	if b := odd.AppendInquiryData(nil); string(b[8:36]) != "  ~     "+strings.Repeat("x", 16)+"    " {
		t.Errorf("names %q", b[8:36])
	}
	if _, err := VPDPayload(AppendVPD(nil, 0, VPDSerial, []byte("1")), VPDIdentification); err == nil {
		t.Error("another VPD page is taken for the one that was asked for")
	}
}

// Lengths that say more than there is are refused; those that say less end the list.
func TestListLengths(t *testing.T) {
	refused := func(name string, err error) {
		t.Helper()
		if err == nil {
			t.Errorf("%s: is read", name)
		}
	}
	p := PopulateToken{Ranges: []Range{{1, 2}}}
	b := p.Append(nil)
	b[15] = 15 // no multiple of a range
	_, err := ParsePopulateToken(b)
	refused("ranges of 15 bytes", err)
	b[15] = 32
	_, err = ParsePopulateToken(b)
	refused("two ranges, one of which is there", err)
	b = p.Append(nil)
	b[1]++
	_, err = ParsePopulateToken(b)
	refused("a list longer than it is", err)

	for n, want := range map[uint16]int{0: 0, 15: 0, 16: 1, 31: 1, 32: 2} {
		b := AppendUnmapList(nil, make([]Range, 2))
		binary.BigEndian.PutUint16(b[2:], n)
		if got, err := UnmapDescriptors(b); err != nil || got != want {
			t.Errorf("UNMAP with %d bytes of descriptors: %d, %v", n, got, err)
		}
	}
	b = AppendUnmapList(nil, make([]Range, 2))
	b[1]--
	_, err = UnmapDescriptors(b)
	refused("descriptors beyond UNMAP DATA LENGTH", err)

	seg := (&CopySegment{Type: CopyBlockToBlock}).Append(nil)
	for _, tt := range []struct {
		typ    byte
		n      int
		known  bool
		ok     bool
		length int
	}{
		{CopyBlockToBlock, 28, true, true, 28}, {CopyBlockToBlock, 32, true, false, 32}, {CopyBlockOffset, 28, true, false, 28}, {CopyBlockOffset, 32, true, true, 32},
		{0x7F, 4, false, true, 4}, {0x7F, 40, false, true, 40}, {0x7F, 41, false, false, 0},
	} {
		b := append(bytes.Clone(seg), make([]byte, 12)...)
		b[0], b[3] = tt.typ, byte(tt.n-4)
		_, n, known, err := ParseCopySegment(b)
		if known != tt.known || (err == nil) != tt.ok || n != tt.length {
			t.Errorf("segment descriptor %02Xh of %d bytes: %d, %v, %v", tt.typ, tt.n, n, known, err)
		}
	}
	_, _, _, err = ParseCopySegment(seg[:3])
	refused("half a head of a segment descriptor", err)

	for long, head := range map[bool]int{false: 4, true: 8} {
		b := (&FormatList{Flags: FormatIP, Pattern: []byte{1, 2}}).Append(nil, long)
		for cut := range b {
			_, err := ParseFormatList(b[:cut], long)
			refused("FORMAT UNIT cut short", err)
		}
		if f, err := ParseFormatList(b[:head+2+2+2], long); err != nil || f.Security || f.PatternAt != head {
			t.Errorf("%+v, %v", f, err)
		}
	}

	status := AppendLBAStatus(nil, []LBAStatus{{Range{1, 2}, 0}, {Range{3, 4}, 0}})
	for n, want := range map[uint32]int{0: 0, 3: 0, 4: 0, 19: 0, 20: 1, 35: 1, 36: 2, 1 << 31: 2, 1<<32 - 1: 2} {
		binary.BigEndian.PutUint32(status, n)
		if got, err := ParseLBAStatus(status); err != nil || len(got) != want {
			t.Errorf("GET LBA STATUS of %d bytes: %d runs, %v", n, len(got), err)
		}
	}
	full := (&FullStatus{Key: 1, Port: "iqn.a"}).Append([]byte{0, 0, 0, 1, 0, 0, 0, 48})
	full = (&FullStatus{Key: 2, Port: "iqn.b"}).Append(full)
	if got, err := ParseFullStatus(full); err != nil || len(got) != 1 || got[0].Port != "iqn.a" {
		t.Errorf("READ FULL STATUS that says one registrant: %+v, %v", got, err)
	}
	if got, err := ParseFullStatus(full[:8]); err != nil || got != nil {
		t.Errorf("READ FULL STATUS cut behind its head: %+v, %v", got, err)
	}
	token := make([]byte, RODTokenLen)
	_, err = ParseRODToken(token)
	refused("a ROD token of no length", err)
	_, err = ParseRODToken(append((&RODToken{}).Append(nil), 0))
	refused("a ROD token of 513 bytes", err)
	info := (&RODInfo{Token: token}).Append(nil)
	for cut, there := range map[int]bool{0: true, 1: false} {
		if got, err := ParseRODInfo(info[:len(info)-cut]); err != nil || (got.Token != nil) != there {
			t.Errorf("ROD token information, %d bytes cut off: a token: %v, %v", cut, got.Token != nil, err)
		}
	}
	info[35]-- // a token of 511 bytes
	if got, err := ParseRODInfo(info); err != nil || got.Token != nil {
		t.Errorf("half a token is taken: %v", err)
	}
}

// PERSISTENT RESERVE IN (SPC-4 §6.14): keys and the reservation, cut by an allocation length or not.
func TestPersistentReserveIn(t *testing.T) {
	keys := unhex(t, "01020304 00000010 1112131415161718 2122232425262728 3132333435363738")
	for n, want := range map[int][]uint64{8: nil, 15: nil, 16: {0x1112131415161718}, 24: {0x1112131415161718, 0x2122232425262728}, 32: {0x1112131415161718, 0x2122232425262728}} {
		if g, got, err := ParseReadKeys(keys[:n]); err != nil || g != 0x01020304 || !reflect.DeepEqual(got, want) {
			t.Errorf("READ KEYS of %d bytes: %x, %x, %v", n, g, got, err)
		}
	}
	if _, _, err := ParseReadKeys(keys[:7]); err == nil {
		t.Error("READ KEYS of 7 bytes is read")
	}
	held := unhex(t, "01020304 00000010 1112131415161718 00000000 00 f6 0000")
	if g, key, typ, err := ParseReadReservation(held); err != nil || g != 0x01020304 || key != 0x1112131415161718 || typ != PRExclusiveAccessRegistrants {
		t.Errorf("READ RESERVATION: %x, %x, %v, %v", g, key, typ, err)
	}
	if g, key, typ, err := ParseReadReservation(unhex(t, "01020304 00000000")); err != nil || g != 0x01020304 || key != 0 || typ != PRNone {
		t.Errorf("READ RESERVATION without one: %x, %x, %v, %v", g, key, typ, err)
	}
	for _, n := range []int{7, 8, 23} {
		if _, _, _, err := ParseReadReservation(held[:n]); err == nil {
			t.Errorf("READ RESERVATION of %d bytes is read", n)
		}
	}
	for typ := range PRType(10) {
		is := func(types string) bool { return types[typ] == '1' }
		if typ.Valid() != is("0101011110") || typ.AllRegistrants() != is("0000000110") || typ.RegistrantsOnly() != is("0000011110") || typ.WriteExclusive() != is("0100010100") {
			t.Errorf("%v: valid %v, all registrants %v, registrants only %v, others read %v", typ, typ.Valid(), typ.AllRegistrants(), typ.RegistrantsOnly(), typ.WriteExclusive())
		}
	}
}

// Fixed format may end anywhere behind the key, by its own length or that of what arrived (SPC-4 §4.5.3).
func TestSenseCut(t *testing.T) {
	s := Sense{Key: KeyIllegalRequest, ASC: ASCInvalidFieldInCDB, InfoValid: true, Info: 7, FieldValid: true, Field: 2}
	for n := range FixedSenseLen + 1 {
		b := s.AppendFixed(nil)
		want := Sense{Key: s.Key}
		if n >= 7 {
			want.InfoValid, want.Info = true, 7
		}
		if n >= 14 {
			want.ASC = s.ASC
		}
		if n >= 18 {
			want = s
		}
		if got, err := ParseSense(b[:n]); (err == nil) != (n >= 3) || err == nil && got != want {
			t.Errorf("%d bytes arrived: %+v, %v", n, got, err)
		}
		if n < 8 {
			continue
		}
		b[7] = byte(n - 8)
		if got, err := ParseSense(b); err != nil || got != want {
			t.Errorf("%d bytes are sense data: %+v, %v", n, got, err)
		}
	}
	for in, want := range map[string]Sense{
		"72 0e 1d00 000000 0b 000a8000 0000000000000203":             {Key: KeyMiscompare, ASC: ASCMiscompare},                             // cut by its length
		"72 0e 1d00 000000 0c 000a0000 0000000000000203":             {Key: KeyMiscompare, ASC: ASCMiscompare},                             // VALID is clear
		"72 0e 1d00 000000 08 00068000 00000203":                     {Key: KeyMiscompare, ASC: ASCMiscompare},                             // too short for information
		"72 05 2400 000000 06 02040000 c000":                         {Key: KeyIllegalRequest, ASC: ASCInvalidFieldInCDB},                  // nor for a field
		"72 0e 1d00 000000 10 80020000 000a8000 0000000000000203":    {Key: KeyMiscompare, ASC: ASCMiscompare, InfoValid: true, Info: 515}, // behind one of the vendor's
		"72 05 2400 000000 08 02060000 000002 00":                    {Key: KeyIllegalRequest, ASC: ASCInvalidFieldInCDB},                  // SKSV is clear
		"72 05 2400 000000 08 02060000 800002 00 02060000 c00009 00": {Key: KeyIllegalRequest, ASC: ASCInvalidFieldInCDB, FieldValid: true, Field: 2},
		"72 03 1100 000000 08 02060000 800002 00":                    {Key: KeyMedium, ASC: ASCUnrecoveredRead}, // another meaning with this key
	} {
		if got, err := ParseSense(unhex(t, in)); err != nil || got != want {
			t.Errorf("%s: %+v, %v", in, got, err)
		}
	}
	if err := NewSenseError(OpRead10, StatusBusy, s.AppendFixed(nil)).(*SenseError); err.Sense != (Sense{}) {
		t.Errorf("sense data of a command that has none: %+v", err.Sense)
	}
}

// A TransportID has a name that ends, and a port's ISID with format 1 alone (SPC-4 §7.6.4.6).
func TestTransportIDs(t *testing.T) {
	longest := strings.Repeat("x", 223) + ",i,0x0123456789ab"
	for name, tt := range map[string]struct {
		change func(b []byte)
		port   string
		ok     bool
	}{
		"a device":            {func([]byte) {}, "iqn.a", true},
		"a port":              {func([]byte) {}, "iqn.a,i,0x0123456789ab", true},
		"the longest":         {func([]byte) {}, longest, true},
		"a longer one":        {func([]byte) {}, "x" + longest, false},
		"no name":             {func(b []byte) { b[4] = 0 }, "iqn.a", false},
		"a name without end":  {func(b []byte) { copy(b[4:], strings.Repeat("x", 20)) }, "iqn.a", false},
		"another protocol":    {func(b []byte) { b[0] = 6 }, "iqn.a", false},
		"format 2":            {func(b []byte) { b[0] |= 0x80 }, "iqn.a", false},
		"a port as a device":  {func(b []byte) { b[0] &= 0x3F }, "iqn.a,i,0x0123456789ab", false},
		"a device as a port":  {func(b []byte) { b[0] |= 0x40 }, "iqn.a", false},
		"less than 20 bytes":  {func(b []byte) { b[3] = 16 }, "iqn.a", false},
		"no multiple of four": {func(b []byte) { b[3] = 22 }, "iqn.abcdefghijklmnopq", false},
		"more than there is":  {func(b []byte) { b[3] += 4 }, "iqn.a", false},
	} {
		b := AppendTransportID(nil, tt.port)
		tt.change(b)
		if got, n, err := ParseTransportID(b); (err == nil) != tt.ok || tt.ok && (got != tt.port || n != len(b)) {
			t.Errorf("%s: %q, %d, %v", name, got, n, err)
		}
	}
	for _, b := range [][]byte{{5, 0, 0}, nil} {
		if _, _, err := ParseTransportID(b); err == nil {
			t.Errorf("a TransportID of %d bytes is read", len(b))
		}
	}
}

// Port groups of REPORT TARGET PORT GROUPS; one that did not arrive whole is left out.
func TestPortGroupBytes(t *testing.T) {
	b := unhex(t, "0000001c 82 8f 0102 00 00 00 02 0000 0304 0000 0506"+"0e 00 0708 00 00 00 00"+"00 00 0001")
	want := []PortGroup{{ID: 0x0102, State: 2, Preferred: true, Ports: []uint16{0x0304, 0x0506}}, {ID: 0x0708, State: 0xE}}
	for n, groups := range map[int]int{len(b): 2, 28: 2, 27: 1, 20: 1, 19: 0, 4: 0} {
		if got, err := ParsePortGroups(b[:n]); err != nil || len(got) != groups || groups > 0 && !reflect.DeepEqual(got, want[:groups]) {
			t.Errorf("%d bytes: %+v, %v", n, got, err)
		}
	}
	if _, err := ParsePortGroups(b[:3]); err == nil {
		t.Error("an answer of 3 bytes is read")
	}
	b[3] = 16 // the answer says that it has one group
	if got, err := ParsePortGroups(b); err != nil || len(got) != 1 {
		t.Errorf("%+v, %v", got, err)
	}
}

// CDBs whose flags or lengths are at their edges.
func TestCDBEdges(t *testing.T) {
	for _, c := range []struct {
		name string
		got  []byte
		want string
	}{
		{"the last of READ(10)", AppendRead(nil, 0xFFFFFFFF, 0xFFFF, false), "28 00 ffffffff 00 ffff 00"},
		{"PRE-FETCH(10), IMMED", AppendPrefetch(nil, 1, 2, true), "34 02 00000001 00 0002 00"},
		{"PRE-FETCH(16)", AppendPrefetch(nil, 1<<32, 2, false), "90 00 0000000100000000 00000002 00 00"},
		{"SYNCHRONIZE CACHE, IMMED", AppendSyncCache(nil, 1, 2, true), "35 02 00000001 00 0002 00"},
		{"WRITE AND VERIFY", AppendWriteVerify(nil, 1, 2, 3), "2e 06 00000001 00 0002 00"},
		{"ORWRITE, FUA", AppendOrWrite16(nil, 1, 2, true), "8b 08 0000000000000001 00000002 00 00"},
		{"COMPARE AND WRITE, FUA", AppendCompareAndWrite(nil, 1, 2, true), "89 08 0000000000000001 000000 02 00 00"},
		{"RTPG", AppendReportTargetPortGroups(nil, false, 0x01020304), "a3 0a 00 000000 01020304 00 00"},
		{"RSOC without time-outs", AppendReportOpcodes(nil, false, 0, 0, 0, 0x01020304), "a3 0c 00 00 0000 01020304 00 00"},
		{"REQUEST SENSE, DESC", AppendRequestSense(nil, true, 252), "03 01 0000 fc 00"},
		{"GET LBA STATUS", AppendGetLBAStatus(nil, 0x0102030405060708, 0x090A0B0C), "9e 12 0102030405060708 090a0b0c 00 00"},
		{"MODE SENSE(6)", AppendModeSense6(nil, false, 3, 0x48, 1, 0xFC), "1a 00 c8 01 fc 00"},
		{"MODE SENSE(10), DBD", AppendModeSense10(nil, true, 2, 0x0A, 0xFF, 0x0102), "5a 08 8a ff 000000 0102 00"},
		{"MODE SELECT(6), SP", AppendModeSelect6(nil, true, 24), "15 11 0000 18 00"},
		{"MODE SELECT(6)", AppendModeSelect6(nil, false, 24), "15 10 0000 18 00"},
		{"START STOP UNIT, IMMED", AppendStartStop(nil, true, false, true), "1b 01 0000 01 00"},
		{"START STOP UNIT, LOEJ", AppendStartStop(nil, false, true, false), "1b 00 0000 02 00"},
		{"PERSISTENT RESERVE IN", AppendPersistIn(nil, 3, 0x0102), "5e 03 0000000000 0102 00"},
	} {
		if !bytes.Equal(c.got, unhex(t, c.want)) {
			t.Errorf("%s: got %x, want %s", c.name, c.got, c.want)
		}
	}
	for in, want := range map[string]int{"": 0, "7f": 0, "7f 00 0000000000 18 00": 0, "7f 00 0000000000 18 000d": 32, "7f 00 0000000000 02 000d": 10, "7f 00 0000000000 01 000d": 0, "7e 00 0000000000 18 000d": 0, "c0": 0} {
		if got := CDBLen(unhex(t, in)); got != want {
			t.Errorf("CDBLen(%s) = %d, want %d", in, got, want)
		}
	}
	for last, blocks := range map[uint32]uint64{0: 1, 0xFFFFFFFE: 0xFFFFFFFF} {
		b := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, last), 4096)
		if c, ok, err := ParseCapacity10(b); err != nil || !ok || c.Blocks != blocks || c.BlockSize != 4096 || !bytes.Equal(c.Append10(nil), b) {
			t.Errorf("READ CAPACITY(10) %x: %+v, %v, %v", b, c, ok, err)
		}
	}
	whole := unhex(t, "ffffffff 00000200")
	if _, ok, err := ParseCapacity10(whole); err != nil || ok || !bytes.Equal((&Capacity{Blocks: 1 << 32, BlockSize: 512}).Append10(nil), whole) {
		t.Errorf("READ CAPACITY(10) of 2^32 blocks: %v, %v", ok, err)
	}
	if _, _, err := ParseCapacity10(whole[:7]); err == nil {
		t.Error("READ CAPACITY(10) of 7 bytes is read")
	}
}
