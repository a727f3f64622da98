package nvme_test

import (
	"bytes"
	"reflect"
	"strings"
	"testing"

	. "softiser/internal/nvme"
)

// at is the place of a field in a structure, bytes.
type at struct{ off, n int }

// checkPlaces sets one field of v after another, and finds it where the standard has it, least significant
// byte first, and nowhere else. The bytes of always are there whatever the fields say.
func checkPlaces[T any, P interface {
	*T
	AppendTo([]byte) []byte
}](t *testing.T, length int, places map[string]at, always map[int]byte) {
	t.Helper()
	var zero T
	name := reflect.TypeOf(zero).Name()
	for _, f := range reflect.VisibleFields(reflect.TypeOf(zero)) {
		place, told := places[f.Name]
		if !told {
			t.Errorf("%s.%s: the test does not know its place", name, f.Name)
			continue
		}
		v := zero
		p := reflect.ValueOf(&v).Elem().FieldByIndex(f.Index)
		value := make([]byte, place.n)
		for i := range value {
			value[i] = byte(0x41 + i%32)
		}
		switch p.Kind() {
		case reflect.String:
			p.SetString(string(value))
		case reflect.Array:
			for i, size := 0, place.n/p.Len(); i < p.Len(); i++ {
				p.Index(i).SetUint(number(value[i*size:][:size]))
			}
		default:
			p.SetUint(number(value))
		}
		got := P(&v).AppendTo([]byte{0xEE})
		if len(got) != 1+length || got[0] != 0xEE {
			t.Fatalf("%s: %d bytes", name, len(got))
		}
		got = got[1:]
		if !bytes.Equal(got[place.off:][:place.n], value) {
			t.Errorf("%s.%s: byte %d on is %x, want %x", name, f.Name, place.off, got[place.off:][:place.n], value)
		}
		for i, b := range got {
			padding := b == ' ' && i >= 4 && i < 72 && name == "Controller" // SN, MN, FR
			if (i < place.off || i >= place.off+place.n) && b != always[i] && !padding {
				t.Errorf("%s.%s: byte %d is %02x", name, f.Name, i, b)
			}
		}
	}
}

func number(b []byte) (n uint64) {
	for i, x := range b {
		n |= uint64(x) << (8 * i)
	}
	return n
}

// Offsets of NVM Express 1.4 (figures 247, 245, 194, 196) and, of what is newer, 2.0.
func TestPlaces(t *testing.T) {
	checkPlaces[Controller](t, IdentifyLen, map[string]at{
		"VID": {0, 2}, "SSVID": {2, 2}, "Serial": {4, 20}, "Model": {24, 40}, "Firmware": {64, 8}, "RAB": {72, 1}, "OUI": {73, 3},
		"CMIC": {76, 1}, "MDTS": {77, 1}, "CntlID": {78, 2}, "Version": {80, 4}, "RTD3R": {84, 4}, "RTD3E": {88, 4}, "OAES": {92, 4},
		"CTRATT": {96, 4}, "Type": {111, 1}, "CRDT": {128, 6}, "OACS": {256, 2}, "ACL": {258, 1}, "AERL": {259, 1}, "FRMW": {260, 1},
		"LPA": {261, 1}, "ELPE": {262, 1}, "WCTemp": {266, 2}, "CCTemp": {268, 2}, "KAS": {320, 2}, "Sanitize": {328, 4}, "ANATT": {342, 1},
		"ANACAP": {343, 1}, "ANAGRPMax": {344, 4}, "ANAGroups": {348, 4}, "SQES": {512, 1}, "CQES": {513, 1}, "MaxCmd": {514, 2},
		"Namespaces": {516, 4}, "ONCS": {520, 2}, "FUSES": {522, 2}, "FNA": {524, 1}, "VWC": {525, 1}, "AWUN": {526, 2}, "AWUPF": {528, 2},
		"NWPC": {531, 1}, "ACWU": {532, 2}, "OCFS": {534, 2}, "SGLS": {536, 4}, "MaxNamespaces": {540, 4}, "Subsystem": {768, 223},
		"IOCCSZ": {1792, 4}, "IORCSZ": {1796, 4}, "ICDOff": {1800, 2}, "FCATT": {1802, 1}, "MSDBD": {1803, 1}, "OFCS": {1804, 2},
		"DiscoveryType": {1806, 1}, "MaxPower": {2048, 2}, "EntryLat": {2052, 4}, "ExLat": {2056, 4},
	}, nil)
	checkPlaces[SMART](t, SMARTLen, map[string]at{
		"Warning": {0, 1}, "Temperature": {1, 2}, "Spare": {3, 1}, "SpareLimit": {4, 1}, "Used": {5, 1}, "UnitsRead": {32, 8},
		"UnitsWritten": {48, 8}, "Reads": {64, 8}, "Writes": {80, 8}, "BusyMinutes": {96, 8}, "PowerCycles": {112, 8},
		"PowerOnHours": {128, 8}, "Unsafe": {144, 8}, "MediaErrors": {160, 8}, "ErrorEntries": {176, 8},
	}, nil)
	checkPlaces[ReservationLog](t, ReservationLogLen, map[string]at{"Count": {0, 8}, "Notice": {8, 1}, "Further": {9, 1}, "NSID": {12, 4}}, nil)
	checkPlaces[CommandSetLimits](t, IdentifyLen, map[string]at{
		"VerifySize": {0, 1}, "WriteZeroesSize": {1, 1}, "UncorrectableSize": {2, 1}, "DSMRanges": {3, 1}, "DSMRangeBlocks": {4, 4}, "DSMBlocks": {8, 8},
	}, nil)
	checkPlaces[namespacePlaces](t, IdentifyLen, map[string]at{
		"Size": {0, 8}, "Capacity": {8, 8}, "Use": {16, 8}, "NSFEAT": {24, 1}, "Format": {26, 1}, "DPC": {28, 1}, "NMIC": {30, 1},
		"RESCAP": {31, 1}, "FPI": {32, 1}, "DLFEAT": {33, 1}, "NAWUN": {34, 2}, "NAWUPF": {36, 2}, "NACWU": {38, 2}, "NABSN": {40, 2},
		"NABO": {42, 2}, "NABSPF": {44, 2}, "NOIOB": {46, 2}, "Bytes": {48, 8}, "NPWG": {64, 2}, "NPWA": {66, 2}, "NPDG": {68, 2},
		"NPDA": {70, 2}, "NOWS": {72, 2}, "MSSRL": {74, 2}, "MCL": {76, 4}, "MSRC": {80, 1}, "ANAGroup": {92, 4}, "NSATTR": {99, 1},
		"NGUID": {104, 16}, "EUI64": {120, 8},
	}, map[int]byte{25: 1, 130: 9, 131: 3, 132: 8, 134: 12})
	n := Namespace{CacheEpoch: [16]byte{1, 15: 2}, Formats: make([]LBAFormat, 1)}
	if b := n.AppendTo(nil); !bytes.Equal(b[384:404], append([]byte("CEP1\x01"), append(make([]byte, 14), 2)...)) {
		t.Errorf("cache epoch % x", b[384:404])
	}
	e := ErrorEntry{Count: 0x0807060504030201, SQID: 0x0A09, CID: 0x0C0B, Status: 0x0E0D >> 1, Location: 0x100F, LBA: 0x1817161514131211, NSID: 0x1C1B1A19, Transport: 0x1E, Opcode: 0x20}
	want := unhex(t, "0102030405060708 090a 0b0c 0c0e 0f10 1112131415161718 191a1b1c 00 1e 00 20"+strings.Repeat("00", 32))
	if b := e.AppendTo(nil); !bytes.Equal(b, want) {
		t.Errorf("error entry %x, want\n%x", b, want)
	}
	z := SanitizeLog{Progress: 0x0201, State: SanitizeRuns, Passes: 16, Dword10: 0x08070605}
	want = unhex(t, "0102 8200 05060708"+strings.Repeat("ffffffff", 6)+strings.Repeat("00", 480))
	if b := z.AppendTo(nil); !bytes.Equal(b, want) {
		t.Errorf("sanitize log %x, want\n%x", b[:40], want[:40])
	}
	if got, err := ParseSanitizeLog(want[:8]); err != nil || got != z {
		t.Errorf("%+v, %v", got, err)
	}
}

// namespacePlaces is Namespace without what has no place of its own: its two formats follow.
type namespacePlaces struct {
	Size, Capacity, Use                       uint64
	NSFEAT, Format, DPC, NMIC                 uint8
	RESCAP, FPI, DLFEAT                       uint8
	NAWUN, NAWUPF, NACWU, NABSN, NABO, NABSPF uint16
	NOIOB                                     uint16
	Bytes                                     uint64
	NPWG, NPWA, NPDG, NPDA, NOWS, MSSRL       uint16
	MCL                                       uint32
	MSRC                                      uint8
	ANAGroup                                  uint32
	NSATTR                                    uint8
	NGUID                                     [16]byte
	EUI64                                     [8]byte
}

func (p *namespacePlaces) AppendTo(dst []byte) []byte {
	n := Namespace{Formats: []LBAFormat{{Shift: 9, Relative: 3}, {Metadata: 8, Shift: 12}}}
	from, to := reflect.ValueOf(p).Elem(), reflect.ValueOf(&n).Elem()
	for i := range from.NumField() {
		to.FieldByName(from.Type().Field(i).Name).Set(from.Field(i))
	}
	return n.AppendTo(dst)
}

// The discovery log page (NVMe over Fabrics 1.1, figure 35): a header, and entries of 1024 bytes.
func TestDiscoveryPlaces(t *testing.T) {
	for _, e := range []DiscoveryEntry{
		{Transport: TransportTCP, Family: FamilyIPv6, Type: SubsystemNVM, Requirements: 4, PortID: 0x0605, CntlID: 0x0807, AdminQueue: 0x0A09, Flags: 0x0C0B,
			Service: strings.Repeat("4", 31), Subsystem: strings.Repeat("s", MaxNQN), Address: strings.Repeat("a", 255), Security: SecurityTLS13},
		{Transport: TransportRDMA, Family: FamilyIPv4, Type: SubsystemReferral, Service: "4420", Subsystem: "nqn.x", Address: "192.0.2.1", Provider: ProviderIWARP},
	} {
		page := AppendDiscovery(nil, 0x0807060504030201, []DiscoveryEntry{{}, e})
		want := make([]byte, 3*1024)
		copy(want, unhex(t, "0102030405060708 0200000000000000 0000"))
		w := want[2048:]
		w[0], w[1], w[2], w[3] = byte(e.Transport), byte(e.Family), byte(e.Type), e.Requirements
		for i, v := range []uint16{e.PortID, e.CntlID, e.AdminQueue, e.Flags} {
			w[4+2*i], w[5+2*i] = byte(v), byte(v>>8)
		}
		copy(w[32:], e.Service)
		copy(w[256:], e.Subsystem)
		copy(w[512:], e.Address)
		if e.Transport == TransportTCP {
			w[768] = 2 // SECTYPE: TLS 1.3
		} else {
			copy(w[768:], []byte{1, 5, 1}) // QPTYPE: connected; PRTYPE: iWARP; CMS: RDMA_CM
		}
		if !bytes.Equal(page, want) {
			t.Errorf("%v: the page differs", e.Transport)
		}
		if got, err := ParseDiscoveryEntry(want[2048:]); err != nil || got != e {
			t.Errorf("%+v, %v", got, err)
		}
	}
	head := AppendDiscovery(nil, 1, nil)
	for name, tt := range map[string]struct {
		at int
		v  byte
		ok bool
	}{"65536 entries": {10, 1, true}, "131072 entries": {10, 2, false}, "2^56 entries": {15, 1, false}, "record format 1": {16, 1, false}, "record format 256": {17, 1, false}} {
		b := bytes.Clone(head)
		b[tt.at] = tt.v
		if _, _, err := ParseDiscoveryHeader(b); (err == nil) != tt.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
	over := bytes.Clone(head)
	over[8], over[10] = 1, 1
	if _, _, err := ParseDiscoveryHeader(over); err == nil {
		t.Error("65537 entries: are read")
	}
}

// The vendor's part of a namespace is another vendor's without our tag.
func TestCacheEpoch(t *testing.T) {
	n := Namespace{CacheEpoch: [16]byte{1, 15: 2}, Formats: make([]LBAFormat, 1)}
	b := n.AppendTo(nil)
	if got, err := ParseNamespace(b); err != nil || got.CacheEpoch != n.CacheEpoch {
		t.Errorf("%x, %v", got.CacheEpoch, err)
	}
	b[387] = '2'
	if got, err := ParseNamespace(b); err != nil || got.CacheEpoch != [16]byte{} {
		t.Errorf("another vendor's: %x, %v", got.CacheEpoch, err)
	}
}

// Lists of namespaces ascend, and lists of controllers have 2047 entries at most.
func TestListLimits(t *testing.T) {
	for in, ok := range map[string]bool{
		"01000000 02000000 00000000 01000000": true,
		"feffffff":                            true,
		"ffffffff":                            false, // all of them is none
		"01000000 01000000":                   false,
	} {
		if _, err := ParseNSIDs(unhex(t, in)); (err == nil) != ok {
			t.Errorf("%s: %v", in, err)
		}
	}
	ids := make([]uint16, 2048)
	for i := range ids {
		ids[i] = uint16(i + 1)
	}
	b := AppendCntlIDs(nil, ids, 0)
	if want := unhex(t, "ff07 0100"); len(b) != IdentifyLen || !bytes.Equal(b[:4], want) || !bytes.Equal(b[4094:], unhex(t, "ff07")) {
		t.Errorf("%x ... %x", b[:4], b[4094:])
	}
	if b := AppendChanged(nil, []uint32{1, 0x04030201}); len(b) != ChangedLen || !bytes.Equal(b[:12], unhex(t, "01000000 01020304 00000000")) {
		t.Errorf("changed namespaces %x", b[:12])
	}
}

// The log of ANA groups with all counts set, and its short form (NVM Express 1.4, figure 204).
func TestANAPlaces(t *testing.T) {
	groups := []ANAGroup{{ID: 0x04030201, Changes: 0x0F0E0D0C0B0A0908, State: ANAStateNonOptimized, Namespaces: []uint32{1, 0x14131211}}, {ID: 7, State: ANAStateChange}}
	const head, state = "0102030405060708 0200 000000000000", "02 000000000000000000000000000000"
	const last = "07000000 00000000 0000000000000000 0f 000000000000000000000000000000"
	full := unhex(t, head+"01020304 02000000 08090a0b0c0d0e0f"+state+"01000000 11121314"+last)
	if b := AppendANA(nil, 0x0807060504030201, groups, false); !bytes.Equal(b, full) {
		t.Errorf("%x, want\n%x", b, full)
	}
	short := unhex(t, head+"01020304 00000000 08090a0b0c0d0e0f"+state+last)
	if b := AppendANA(nil, 0x0807060504030201, groups, true); !bytes.Equal(b, short) {
		t.Errorf("groups only: %x, want\n%x", b, short)
	}
	for cut := range full {
		if _, _, err := ParseANA(full[:cut]); err == nil {
			t.Errorf("cut at %d: is read", cut)
		}
	}
	twice := bytes.Clone(full)
	copy(twice[52:], twice[48:52])
	if _, _, err := ParseANA(twice); err == nil {
		t.Error("a namespace that is there twice: is read")
	}
}

// A reservation report tells how many registrants follow, whatever else does.
func TestRegistrants(t *testing.T) {
	r := ReservationState{Generation: 0x04030201, Type: ExclusiveAccess, Persist: true, Registrants: []Registrant{{CntlID: 0x0201, Key: 1}, {Key: 2, Holder: true}}}
	b := r.AppendTo(nil)
	if want := unhex(t, "01020304 02 0200 0000 01"); !bytes.Equal(b[:10], want) {
		t.Errorf("%x, want %x", b[:10], want)
	}
	for count, want := range map[byte]int{0: 0, 1: 1, 2: 2, 3: 2} {
		b[5] = count
		if got, err := ParseReservationState(b); err != nil || len(got.Registrants) != want {
			t.Errorf("%d registrants: %+v, %v", count, got, err)
		}
	}
	if ReservationType(0).Valid() || !WriteExclusive.Valid() || !ExclusiveAccessAllRegistrants.Valid() || ReservationType(7).Valid() {
		t.Error("types")
	}
}

// Commands with data of the host, over what was in their place before.
func TestCommands(t *testing.T) {
	for name, tt := range map[string]struct {
		make func(s *SQE)
		want string // opcode and flags, namespace, dwords 10 to 15
	}{
		"Dataset Management": {func(s *SQE) { s.NewDeallocate(0x04030201, 256) }, "0940 01020304 ff000000 04000000 00000000 00000000 00000000 00000000"},
		"Copy":               {func(s *SQE) { s.NewCopy(0x04030201, 0x0807060504030201, 256) }, "1940 01020304 01020304 05060708 ff000000 00000000 00000000 00000000"},
		"Reservation Acquire": {func(s *SQE) {
			s.NewReservation(OpReservationAcquire, 1, PreemptAndAbort, WriteExclusiveRegistrantsOnly, false)
		},
			"1140 01000000 02030000 00000000 00000000 00000000 00000000 00000000"},
		"Reservation Release, IEKEY": {func(s *SQE) { s.NewReservation(OpReservationRelease, 1, 0, ExclusiveAccess, true) },
			"1540 01000000 08020000 00000000 00000000 00000000 00000000 00000000"},
		"Set Features": {func(s *SQE) { s.NewSetFeatures(FeatureAsyncEvents, 1, 0x04030201) }, "0940 01000000 0b000000 01020304 00000000 00000000 00000000 00000000"},
		"Sanitize": {func(s *SQE) { s.NewSanitize(SanitizeDword10(SanitizeOverwrite, 16, SanitizeInvert), 0x04030201) },
			"8440 00000000 03010000 01020304 00000000 00000000 00000000 00000000"},
		"Format NVM": {func(s *SQE) { s.NewFormat(NSIDAll, SecureEraseCrypto) }, "8040 ffffffff 00040000 00000000 00000000 00000000 00000000 00000000"},
	} {
		var s SQE
		for i := range s {
			s[i] = 0xFF
		}
		tt.make(&s)
		got := append(append(bytes.Clone(s[:2]), s[4:8]...), s[40:]...)
		if want := unhex(t, tt.want); !bytes.Equal(got, want) {
			t.Errorf("%s: %x, want\n%x", name, got, want)
		}
	}
}

// Structures that end too early are refused, and read when they are just long enough.
func TestShortStructures(t *testing.T) {
	for name, tt := range map[string]struct {
		n     int
		parse func(b []byte) error
	}{
		"Identify Controller":      {IdentifyLen, func(b []byte) error { _, err := ParseController(b); return err }},
		"Identify Namespace":       {IdentifyLen, func(b []byte) error { _, err := ParseNamespace(b); return err }},
		"command set limits":       {16, func(b []byte) error { _, err := ParseCommandSetLimits(b); return err }},
		"SMART log":                {SMARTLen, func(b []byte) error { _, err := ParseSMART(b); return err }},
		"error log entry":          {ErrorEntryLen, func(b []byte) error { _, err := ParseErrorEntry(b); return err }},
		"sanitize log":             {8, func(b []byte) error { _, err := ParseSanitizeLog(b); return err }},
		"reservation log":          {ReservationLogLen, func(b []byte) error { _, err := ParseReservationLog(b); return err }},
		"reservation report":       {64, func(b []byte) error { _, err := ParseReservationState(b); return err }},
		"discovery log header":     {DiscoveryEntryLen, func(b []byte) error { _, _, err := ParseDiscoveryHeader(b); return err }},
		"discovery log entry":      {DiscoveryEntryLen, func(b []byte) error { _, err := ParseDiscoveryEntry(b); return err }},
		"ANA log":                  {16, func(b []byte) error { _, _, err := ParseANA(b); return err }},
		"source ranges of Copy":    {2 * CopyRangeLen, func(b []byte) error { _, err := ParseCopyRanges(b, 2); return err }},
		"namespace descriptor":     {0, func(b []byte) error { _, err := ParseIdentifiers(b); return err }},
		"list of namespaces":       {0, func(b []byte) error { _, err := ParseNSIDs(b); return err }},
		"half a list of namespace": {0, func([]byte) error { _, err := ParseNSIDs([]byte{1, 0, 0}); return err }},
	} {
		if err := tt.parse(make([]byte, tt.n)); err != nil {
			t.Errorf("%s of %d bytes: %v", name, tt.n, err)
		}
		if tt.n > 0 && tt.parse(make([]byte, tt.n-1)) == nil {
			t.Errorf("%s of %d bytes: is read", name, tt.n-1)
		}
	}
	for formats, ok := range map[byte]bool{63: true, 64: false, 255: false} { // less one
		b := make([]byte, IdentifyLen)
		b[25] = formats
		if n, err := ParseNamespace(b); (err == nil) != ok || ok && len(n.Formats) != 64 {
			t.Errorf("%d formats: %v", int(formats)+1, err)
		}
	}
}

// Namespace identification descriptors (figure 249): types with another length than theirs are refused,
// those that are not known passed over, and the list ends with a length of 0.
func TestDescriptors(t *testing.T) {
	want := Identifiers{EUI64: [8]byte{1, 7: 2}, NGUID: [16]byte{3, 15: 4}, UUID: [16]byte{5, 15: 6}, CSI: 7}
	list := "01080000 0100000000000002" + "02100000 03000000000000000000000000000004" + "03100000 05000000000000000000000000000006" + "04010000 07"
	if b := want.AppendTo(nil); !bytes.Equal(b, append(unhex(t, list), make([]byte, IdentifyLen-len(unhex(t, list)))...)) {
		t.Errorf("%x", b[:80])
	}
	for in, ok := range map[string]bool{
		list:                             true,
		"09020000 0102" + list:           true,
		list + "00000000 01080000":       true,
		list + "040000":                  true,
		list + "04010000":                false,
		"01070000 01000000000000" + list: false,
		"020f0000 030000000000000000000000000000" + list: false,
		"03080000 0500000000000000" + list:               false,
		"04020000 0700" + list:                           false,
	} {
		if got, err := ParseIdentifiers(unhex(t, in)); (err == nil) != ok || ok && got != want {
			t.Errorf("%s: %+v, %v", in, got, err)
		}
	}
}

// Fields that share a dword with others: each takes all that it has room for, and leaves the others alone.
func TestFields(t *testing.T) {
	var s SQE
	g := s.NewGetLogPage(LogANA, 0x04030201, 0x0807060504030201, 0x0403_0204)
	if want := unhex(t, "02 40 0000 01020304"); !bytes.Equal(s[:8], want) { // 40h: data by an SGL
		t.Errorf("Get Log Page %x", s[:8])
	}
	if want := unhex(t, "0c 00 80c0 0001 0000 0102030405060708"); !bytes.Equal(s[40:56], want) {
		t.Errorf("Get Log Page %x, want %x", s[40:56], want)
	}
	if g.Length() != 0x0403_0204 {
		t.Errorf("length %#x", g.Length())
	}
	g.SetSpecific(0xFF)
	if g.Specific() != 0x7F || g.RetainEvent() {
		t.Errorf("specific %#x", s[41])
	}
	g.SetRetainEvent()
	g.SetSpecific(1)
	if g.Specific() != 1 || !g.RetainEvent() || !g.ANAGroupsOnly() {
		t.Errorf("specific %#x", s[41])
	}
	for name, tt := range map[string]struct {
		dword10   uint32
		got       func() uint8
		want, off uint8 // with the bits of dword10 set, and with all others
	}{
		"Select":             {0x700, func() uint8 { return uint8(s.Features().Select()) }, 7, 0},
		"LBAF and LBAFU":     {0x300F, func() uint8 { return s.Format().LBAFormat() }, 0x3F, 0},
		"MSET, PI and PIL":   {0x1F0, func() uint8 { return s.Format().Metadata() }, 0x1F, 0},
		"SES":                {0xE00, func() uint8 { return uint8(s.Format().SecureErase()) }, 7, 0},
		"SANACT":             {0x7, func() uint8 { return uint8(s.Sanitize().Action()) }, 7, 0},
		"OWPASS":             {0xF0, func() uint8 { return uint8(s.Sanitize().Passes()) }, 15, 16}, // 0: 16
		"RRELA":              {0x7, func() uint8 { return s.Reservation().Action() }, 7, 0},
		"CPTPL of Register":  {0xC0000000, func() uint8 { return s.Reservation().Persist() }, 3, 0},
		"log specific field": {0x7F00, func() uint8 { return s.GetLogPage().Specific() }, 0x7F, 0},
	} {
		s.SetCDW(10, tt.dword10)
		if got := tt.got(); got != tt.want {
			t.Errorf("%s of %08xh: %d, want %d", name, tt.dword10, got, tt.want)
		}
		s.SetCDW(10, ^tt.dword10)
		if got := tt.got(); got != tt.off {
			t.Errorf("%s of %08xh: %d, want %d", name, ^tt.dword10, got, tt.off)
		}
	}
	for _, tt := range []struct {
		dword12                uint32
		read, copy, copyFormat uint8
	}{{0x3C000000, 0xF, 0xF, 0}, {^uint32(0x3C00F000), 0, 0, 0xF}, {0xF000, 0, 0xF, 0}, {0x04000000, 1, 1, 0}} {
		s.SetCDW(12, tt.dword12)
		if s.ReadWrite().ProtectionInfo() != tt.read || s.Copy().ProtectionInfo() != tt.copy || s.Copy().Format() != tt.copyFormat {
			t.Errorf("PRINFO of %08xh: Read %x, Copy %x, its format %x", tt.dword12, s.ReadWrite().ProtectionInfo(), s.Copy().ProtectionInfo(), s.Copy().Format())
		}
	}
	s.SetCDW(10, 0xFFFFFFFF)
	s.Reservation().SetPersist(PersistOff)
	if got := s.CDW(10); got != 0xBFFFFFFF {
		t.Errorf("CPTPL %08x", got)
	}
	if Cap(0xF<<48).MinPage() != 27 || Cap(0xF0<<48).MinPage() != 12 {
		t.Error("MPSMIN")
	}
	for c, ok := range map[Config]bool{NewConfig(CommandSetNVM, true): true, NewConfig(CommandSetAll, true): true, NewConfig(1, true): false, NewConfig(7, true): false} {
		if c.Valid() != ok {
			t.Errorf("CC %08x", uint32(c))
		}
	}
	for name, ok := range map[string]bool{"nqn." + strings.Repeat("x", 219): true, "nqn." + strings.Repeat("x", 220): false, "nqn.a\x7fb": false} {
		if err := CheckNQN(name); (err == nil) != ok {
			t.Errorf("a name of %d bytes: %v", len(name), err)
		}
	}
	var d SGL
	d.SetBlock(0x5A, 1, 0xFFFFFFFF) // without a key, the length has 32 bits
	if d.Length() != 0xFFFFFFFF || d.Keyed() {
		t.Errorf("length %x", d.Length())
	}
	d.SetKeyed(0x4F, 1, 0x01FFFFFF, 0x04030201) // with one, 24
	if want := unhex(t, "0100000000000000 ffffff 01020304 4f"); !bytes.Equal(d[:], want) || d.Length() != 0xFFFFFF || d.Key() != 0x04030201 {
		t.Errorf("keyed data block %x, want %x", d[:], want)
	}
	for shift, ok := range map[uint8]bool{8: false, 9: true, 16: true, 17: false} {
		n := Namespace{Formats: []LBAFormat{{Shift: shift}}}
		if size, err := n.BlockSize(); (err == nil) != ok || ok && size != 1<<shift {
			t.Errorf("blocks of 2^%d bytes: %d, %v", shift, size, err)
		}
	}
	for r, ok := range map[BlockRange]bool{{0, 8}: true, {7, 1}: true, {8, 0}: true, {7, 2}: false, {8, 1}: false, {9, 0}: false} {
		if r.Within(8) != ok {
			t.Errorf("%+v is within 8 blocks: %v", r, !ok)
		}
	}
}
