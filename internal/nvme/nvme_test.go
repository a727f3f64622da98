package nvme_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	. "softiser/internal/nvme"
)

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.NewReplacer(" ", "", "|", "").Replace(s))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Commands as Linux 6.1 sends them.
func TestGoldenCommands(t *testing.T) {
	var s SQE
	check := func(name, want string) {
		t.Helper()
		if w := unhex(t, want); !bytes.Equal(s[:], w) {
			t.Errorf("%s:\n%x, want\n%x", name, s[:], w)
		}
	}
	c := s.NewConnect()
	s.SGL().SetBlock(SGLInCapsule, 0, ConnectDataLen)
	c.SetSQSize(31)
	for d, want := range map[time.Duration]time.Duration{0: 0, 1: time.Millisecond, 1500 * time.Microsecond: 2 * time.Millisecond, 1 << 62: math.MaxUint32 * time.Millisecond, 5 * time.Second: 5 * time.Second} {
		if c.SetKeepAlive(d); c.KeepAlive() != want {
			t.Errorf("a keep alive timeout of %v becomes %v, want %v", d, c.KeepAlive(), want)
		}
	}
	c.SetKeepAlive(5 * time.Second)
	check("Connect", "7f400000 01000000"+strings.Repeat("00", 16)+"0000000000000000 00040000 00000001 | 0000 0000 1f00 00 00 88130000"+strings.Repeat("00", 12))

	s.NewPropertyGet(PropCAP)
	s.SetCID(1)
	check("Property Get", "7f400100 04000000"+strings.Repeat("00", 31)+"5a 01000000 00000000"+strings.Repeat("00", 16))

	s.NewPropertySet(PropCC, uint64(NewConfig(CommandSetAll, false)))
	check("Property Set", "7f400000 00000000"+strings.Repeat("00", 31)+"5a 00000000 14000000 60004600 00000000"+strings.Repeat("00", 8))

	s.NewIdentify(CNSController, 0)
	s.SGL().SetBlock(SGLTransport, 0, IdentifyLen)
	check("Identify", "06400000 00000000"+strings.Repeat("00", 16)+"0000000000000000 00100000 0000005a 01000000"+strings.Repeat("00", 20))

	s.NewGetLogPage(LogANA, NSIDAll, 0, 0x2010)
	if got := s.CDW(10); got != 0x0803000C {
		t.Errorf("Get Log Page: %08x", got)
	}
	if n := s.GetLogPage().Length(); n != 0x2010 {
		t.Errorf("Get Log Page of %d bytes", n)
	}
	l := s.NewGetLogPage(LogDiscovery, 0, 1024, 1024)
	l.SetRetainEvent()
	if s.CDW(10) != 0x00FF8070 || l.Offset() != 1024 || !l.RetainEvent() {
		t.Errorf("Get Log Page: %08x", s.CDW(10))
	}
	s.SGL().SetKeyed(SGLKeyedInvalidate, 0xffff8880060e8c00, 1024, 0x3a62ad01)
	if want := unhex(t, "008c0e068088ffff 000400 01ad623a 4f"); !bytes.Equal(s[24:40], want) {
		t.Errorf("keyed SGL: %x, want %x", s[24:40], want)
	}
	if g := s.SGL(); g.Key() != 0x3a62ad01 || g.Length() != 1024 || g.Address() != 0xffff8880060e8c00 || !g.Keyed() {
		t.Errorf("keyed SGL: %x", g[:])
	}
}

func TestReadWrite(t *testing.T) {
	var s SQE
	s.Init(OpWriteZeroes, 7)
	c := s.ReadWrite()
	c.SetFUA(true)
	c.SetDeallocate(true)
	c.SetRange(1<<40, 65536)
	if c.SLBA() != 1<<40 || c.Blocks() != 65536 || !c.FUA() || !c.Deallocate() || s.NSID() != 7 || c.ProtectionInfo() != 0 {
		t.Errorf("%x", s[:])
	}
	c.SetFUA(false)
	c.SetDeallocate(false)
	if c.FUA() || c.Deallocate() || c.Blocks() != 65536 {
		t.Errorf("%x", s[:])
	}
	s.SetCDW(12, s.CDW(12)|0xF<<26)
	if c.ProtectionInfo() != 0xF {
		t.Errorf("PRINFO %x", c.ProtectionInfo())
	}
	for _, tt := range []struct {
		lba  uint64
		n    uint32
		size uint64
		ok   bool
	}{
		{0, 1, 0, false}, {0, 1, 1, true}, {1, 1, 1, false}, {7, 1, 8, true}, {7, 2, 8, false}, {1<<64 - 1, 2, 1 << 63, false}, {1<<64 - 1, 2, 1<<64 - 1, false},
	} {
		c.SetRange(tt.lba, tt.n)
		if c.Within(tt.size) != tt.ok {
			t.Errorf("%d blocks at %d of %d: %t", tt.n, tt.lba, tt.size, !tt.ok)
		}
	}
}

func TestDirection(t *testing.T) {
	var s SQE
	for _, tt := range []struct {
		op             Opcode
		fc             FabricsType
		fromHost, host bool
	}{
		{OpFlush, 0, false, false}, {OpWrite, 0, true, false}, {OpRead, 0, false, true}, {OpReservationReport, 0, false, true},
		{OpCopy, 0, true, false}, {AdminSetFeatures, 0, true, false}, {AdminGetFeatures, 0, false, true},
		{OpFabrics, FabricsConnect, true, false}, {OpFabrics, FabricsPropertyGet, false, false}, {OpFabrics, FabricsAuthReceive, false, true},
		{OpFabrics, FabricsAuthSend, true, false}, {OpFabrics, FabricsPropertySet, false, false},
	} {
		s.Init(tt.op, uint32(tt.fc))
		if s.FromHost() != tt.fromHost || s.ToHost() != tt.host {
			t.Errorf("%02x/%02x: from host %t, to host %t", tt.op, tt.fc, s.FromHost(), s.ToHost())
		}
	}
}

func TestStatus(t *testing.T) {
	var c CQE
	c.SetStatus(ConnectInvalidParameters | DoNotRetry)
	if c[14] != 0x04 || c[15] != 0x83 {
		t.Errorf("%x", c[14:])
	}
	s := c.Status()
	if s.Code() != 0x182 || s.Type() != 1 || s.Retryable() || s.OK() {
		t.Errorf("%v", s)
	}
	if got, want := s.Error(), "182h do not retry: connect: invalid parameters, or write to a read only range"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if Success.Retryable() || !Success.OK() || !ANATransition.Retryable() || !(Success | More).OK() {
		t.Error("success and retries")
	}
	if got := Status(0x7FF).String(); got != "7ffh" {
		t.Errorf("%q", got)
	}
	if d := Status(0x1800 | 0x21).Delay(); d != 3 {
		t.Errorf("delay %d", d)
	}
	c.SetCID(0x1234)
	c.SetSQID(5)
	c.SetSQHead(6)
	c.SetResult(1 << 40)
	if c.CID() != 0x1234 || c.SQID() != 5 || c.SQHead() != 6 || c.Result() != 1<<40 || c.DW0() != 0 || c.Status() != s {
		t.Errorf("%x", c[:])
	}
}

func TestConnectData(t *testing.T) {
	d := ConnectData{HostID: HostID{15: 10}, CntlID: CntlIDDynamic, Subsystem: "nqn.2026-11.softiser:disk0", Host: "nqn." + strings.Repeat("h", MaxNQN-4)}
	b := d.AppendTo(nil)
	if got, err := ParseConnectData(b); err != nil || got != d {
		t.Errorf("%+v, %v", got, err)
	}
	if s := d.HostID.String(); s != "00000000-0000-0000-0000-00000000000a" {
		t.Error(s)
	}
	if _, err := ParseConnectData(b[:ConnectDataLen-1]); err == nil {
		t.Error("short data is read")
	}
	for _, tt := range []struct {
		name   string
		at     int
		fill   string
		offset uint16
	}{
		{"no subsystem", 256, strings.Repeat("\x00", 256), 256},
		{"no host", 512, strings.Repeat("\x00", 256), 512},
		{"a subsystem without an end", 256, strings.Repeat("n", 256), 256},
		{"a subsystem that is no text", 256, "nqn.\xff\x00", 256},
		{"a host that is no text", 512, "nqn.\xe2\x82\x00", 512},
		{"a host of 224 bytes", 512, strings.Repeat("n", 224) + strings.Repeat("\x00", 32), 512},
	} {
		bad := bytes.Clone(b)
		copy(bad[tt.at:], tt.fill)
		_, err := ParseConnectData(bad)
		var ne *NameError
		if !errors.As(err, &ne) || ne.Offset != tt.offset {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	if v := InvalidParameter(true, ConnectDataAtHost); v != 0x10200 {
		t.Errorf("%x", v)
	}
	if v := InvalidParameter(false, ConnectAtSQSize); v != 0x2c {
		t.Errorf("%x", v)
	}
	for name, ok := range map[string]bool{
		DiscoveryNQN: true, "": false, "iqn.x": false, "nqn.a b": false, "nqn.\xff": false, "nqn." + strings.Repeat("x", 220): false, "nqn.2014-08.org.nvmexpress:uuid:1": true,
	} {
		if err := CheckNQN(name); (err == nil) != ok {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestProperties(t *testing.T) {
	if c := NewConfig(CommandSetAll, true); c != 0x00460061 || !c.Enabled() || !c.Valid() {
		t.Errorf("%08x", uint32(c))
	}
	if c := NewConfig(CommandSetAll, true).WithShutdown(ShutdownNormal); c != 0x00464061 || c.Shutdown() != ShutdownNormal {
		t.Errorf("%08x", uint32(c))
	}
	for _, c := range []Config{0, 0x00450061, 0x00360061, 0x004600E1, 0x00460861, 0x00460011} {
		if c.Valid() {
			t.Errorf("%08x is valid", uint32(c))
		}
	}
	c := Cap(0x000008200f0003ff) // Linux
	if c.Entries() != 1024 || c.Timeout() != 15 || c.MinPage() != 12 || c&CapNVM == 0 || c&CapIOCS == 0 {
		t.Errorf("%016x", uint64(c))
	}
	if n := NewCap(1024, 15, CapNVM|CapIOCS); n != c {
		t.Errorf("%016x, want %016x", uint64(n), uint64(c))
	}
	if s := CtrlStatus(9); !s.Ready() || !s.ShutdownDone() || s.Fatal() {
		t.Errorf("%x", uint32(s))
	}
	if CtrlStatus(4).ShutdownDone() {
		t.Error("a shutdown that occurs has ended")
	}
	if s := Version14.String(); s != "1.4.0" {
		t.Error(s)
	}
	if PropCAP.Size() != 8 || PropCC.Size() != 4 || PropertyOffset(3).String() != "property 03h" {
		t.Error("properties")
	}
}

// fill sets every field of a struct to something of its own.
func fill(v reflect.Value, n *uint64) {
	for i := range v.NumField() {
		switch f := v.Field(i); f.Kind() {
		case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
			*n++
			f.SetUint(*n & 0x7F)
		case reflect.String:
			f.SetString("n" + strings.Repeat("x", i%7))
		case reflect.Array:
			for k := range f.Len() {
				*n++
				f.Index(k).SetUint(*n & 0x7F)
			}
		case reflect.Struct:
			fill(f, n)
		}
	}
}

// Every field is at a place of its own, the same for both directions.
func TestStructures(t *testing.T) {
	n := uint64(0)
	var c Controller
	fill(reflect.ValueOf(&c).Elem(), &n)
	if got, err := ParseController(c.AppendTo(nil)); err != nil || *got != c {
		t.Errorf("%+v\n%+v, %v", c, got, err)
	}
	var ns Namespace
	fill(reflect.ValueOf(&ns).Elem(), &n)
	ns.Formats = []LBAFormat{{0, 9, 1}, {8, 12, 2}}
	if got, err := ParseNamespace(ns.AppendTo(nil)); err != nil || !reflect.DeepEqual(*got, ns) {
		t.Errorf("%+v\n%+v, %v", ns, got, err)
	}
	var s SMART
	fill(reflect.ValueOf(&s).Elem(), &n)
	if got, err := ParseSMART(s.AppendTo(nil)); err != nil || *got != s {
		t.Errorf("%+v\n%+v, %v", s, got, err)
	}
	e := ErrorEntry{1, 2, 3, LBAOutOfRange | DoNotRetry, 4, 5, 6, 7, 8}
	if got, err := ParseErrorEntry(e.AppendTo(nil)); err != nil || got != e {
		t.Errorf("%+v, %v", got, err)
	}
	l := CommandSetLimits{1, 2, 3, 4, 5, 6}
	if got, err := ParseCommandSetLimits(l.AppendTo(nil)); err != nil || got != l {
		t.Errorf("%+v, %v", got, err)
	}
	r := ReservationLog{1, NoticeReservationPreempted, 3, 4}
	if got, err := ParseReservationLog(r.AppendTo(nil)); err != nil || got != r {
		t.Errorf("%+v, %v", got, err)
	}
	d := DiscoveryEntry{TransportTCP, FamilyIPv6, SubsystemNVM, ChannelRequired | FlowControlOffOK, 1, 0xFFFF, 32, EntryDuplicate, "4420", "nqn.x", "::1", SecurityTLS13, 0}
	page := AppendDiscovery(nil, 9, []DiscoveryEntry{d})
	if gen, k, err := ParseDiscoveryHeader(page); gen != 9 || k != 1 || err != nil {
		t.Error(gen, k, err)
	}
	if got, err := ParseDiscoveryEntry(page[DiscoveryEntryLen:]); err != nil || got != d {
		t.Errorf("%+v, %v", got, err)
	}
	for set, want := range map[RDMAProvider]RDMAProvider{0: ProviderUnspecified, ProviderRoCEv2: ProviderRoCEv2} {
		d := DiscoveryEntry{Transport: TransportRDMA, Address: "::1", Provider: set}
		page := AppendDiscovery(nil, 1, []DiscoveryEntry{d})[DiscoveryEntryLen:]
		if got, err := ParseDiscoveryEntry(page); err != nil || got.Provider != want || page[768] != 1 || page[769] != byte(want) || page[770] != 1 {
			t.Errorf("%+v, % x, %v", got, page[768:771], err)
		}
	}
	for _, id := range []Identifiers{{UUID: [16]byte{1}}, {EUI64: [8]byte{1}, NGUID: [16]byte{2}, CSI: 3}} {
		if got, err := ParseIdentifiers(id.AppendTo(nil)); err != nil || got != id {
			t.Errorf("%+v, %v", got, err)
		}
	}
}

func TestBlockSize(t *testing.T) {
	for _, tt := range []struct {
		format  uint8
		formats []LBAFormat
		want    int
	}{
		{0, []LBAFormat{{0, 9, 0}}, 512},
		{1, []LBAFormat{{0, 9, 0}, {0, 12, 0}}, 4096},
		{1, []LBAFormat{{0, 9, 0}}, 0},
		{0x20, []LBAFormat{{0, 9, 0}}, 0}, // format 16
		{0, []LBAFormat{{8, 9, 0}}, 0},
		{0, []LBAFormat{{0, 8, 0}}, 0},
		{0, []LBAFormat{{0, 63, 0}}, 0},
	} {
		n := Namespace{Format: tt.format, Formats: tt.formats}
		if got, err := n.BlockSize(); got != tt.want || (err == nil) != (tt.want != 0) {
			t.Errorf("%+v: %d, %v", tt, got, err)
		}
	}
}

func TestReservationReport(t *testing.T) {
	r := ReservationState{Generation: 1, Type: WriteExclusive, Registrants: []Registrant{{14, true, 0x1234, HostID{15: 11}}}}
	b := r.AppendTo(nil)
	// As SPDK's target sends it.
	want := unhex(t, "01000000 01 0100 0000 00"+strings.Repeat("00", 54)+"0e00 01 0000000000 3412000000000000 0000000000000000000000000000000b"+strings.Repeat("00", 32))
	if !bytes.Equal(b, want) {
		t.Errorf("%x, want\n%x", b, want)
	}
	if got, err := ParseReservationState(b); err != nil || !reflect.DeepEqual(*got, r) {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := ParseReservationState(b[:100]); err != nil || len(got.Registrants) != 0 {
		t.Errorf("cut short: %+v, %v", got, err)
	}
	var s SQE
	c := s.NewReservation(OpReservationAcquire, 1, PreemptAndAbort, ExclusiveAccessAllRegistrants, true)
	c.SetPersist(PersistOn)
	if c.Action() != PreemptAndAbort || c.Type() != ExclusiveAccessAllRegistrants || !c.IgnoreKey() || c.Persist() != PersistOn {
		t.Errorf("%x", s[40:44])
	}
	if ReservationNone.Valid() || ReservationType(7).Valid() || !ExclusiveAccessAllRegistrants.Valid() {
		t.Error("types")
	}
}

func TestRanges(t *testing.T) {
	var s SQE
	d := s.NewDeallocate(1, 256)
	if d.Ranges() != 256 || !d.Deallocate() {
		t.Errorf("%x", s[40:])
	}
	b := AppendDSMRange(AppendDSMRange(nil, BlockRange{5, 6}), BlockRange{1 << 40, 1<<32 - 1})
	if DSMRange(b, 0) != (BlockRange{5, 6}) || DSMRange(b, 1) != (BlockRange{1 << 40, 1<<32 - 1}) {
		t.Errorf("%x", b)
	}
	c := s.NewCopy(1, 77, 2)
	b = AppendCopyRange(AppendCopyRange(nil, BlockRange{5, 65536}), BlockRange{9, 1})
	r, err := ParseCopyRanges(b, c.Ranges())
	if err != nil || c.Destination() != 77 || r[0] != (BlockRange{5, 65536}) || r[1] != (BlockRange{9, 1}) || c.Format() != 0 {
		t.Errorf("%v, %v", r, err)
	}
	if _, err := ParseCopyRanges(b, 3); err == nil {
		t.Error("ranges that are not there are read")
	}
	if (BlockRange{1, 1<<64 - 1}).Within(1 << 63) {
		t.Error("a range that overflows is within")
	}
}

func TestEvents(t *testing.T) {
	for _, e := range []Event{EventNamespaceChanged, EventANAChanged, EventDiscoveryChanged} {
		if e.Kind() != EventNotice {
			t.Errorf("%v", e)
		}
	}
	if EventANAChanged.Log() != LogANA || EventANAChanged.Info() != 3 || EventReservation.Kind() != EventIO || EventReservation.Log() != LogReservation {
		t.Error("events")
	}
	if s, c := ParseQueueCounts(QueueCounts(128, 128)); s != 128 || c != 128 || QueueCounts(128, 128) != 0x007f007f {
		t.Error("queue counts")
	}
}

// As Linux's target sends it: one group, one namespace.
func TestANA(t *testing.T) {
	want := unhex(t, "0000000000000000 0100 000000000000 01000000 01000000 0000000000000000 01"+strings.Repeat("00", 15)+"01000000")
	g := []ANAGroup{{ID: 1, State: ANAStateOptimized, Namespaces: []uint32{1}}}
	b := AppendANA(nil, 0, g, false)
	if !bytes.Equal(b, want) {
		t.Errorf("%x, want\n%x", b, want)
	}
	if n, got, err := ParseANA(b); n != 0 || err != nil || !reflect.DeepEqual(got, g) {
		t.Errorf("%+v, %v", got, err)
	}
	if only := AppendANA(nil, 0, g, true); len(only) != 48 {
		t.Errorf("groups only: %x", only)
	}
	for name, bad := range map[string]func(b []byte){
		"more groups than bytes": func(b []byte) { b[8] = 2 },
		"more namespaces":        func(b []byte) { b[20] = 2 },
		"2^32-1 namespaces":      func(b []byte) { copy(b[20:], "\xff\xff\xff\xff") },
		"no state":               func(b []byte) { b[32] = 0 },
		"no group":               func(b []byte) { b[16] = 0 },
		"namespace 0":            func(b []byte) { b[48] = 0 },
	} {
		b := bytes.Clone(want)
		bad(b)
		if _, _, err := ParseANA(b); err == nil {
			t.Errorf("%s: is read", name)
		}
	}
	for s, want := range map[ANAState]Status{ANAStateOptimized: Success, ANAStateNonOptimized: Success, ANAStateInaccessible: 0x302, ANAStatePersistentLoss: 0x301, ANAStateChange: 0x303} {
		if s.Status() != want {
			t.Errorf("%s: %v", s, s.Status())
		}
	}
}

func TestLists(t *testing.T) {
	ids := []uint32{1, 2, 5, 0xFFFFFFFE}
	if got, err := ParseNSIDs(AppendNSIDs(nil, ids, 1)); err != nil || !reflect.DeepEqual(got, ids[1:]) {
		t.Errorf("%v, %v", got, err)
	}
	many := make([]uint32, MaxActive+1)
	for i := range many {
		many[i] = uint32(i + 1)
	}
	if got, err := ParseNSIDs(AppendNSIDs(nil, many, 0)); err != nil || len(got) != MaxActive {
		t.Errorf("%d, %v", len(got), err)
	}
	if b := AppendChanged(nil, many); b[0] != 0xFF || b[3] != 0xFF || b[4] != 0 {
		t.Errorf("%x", b[:8])
	}
	if _, err := ParseNSIDs([]byte{2, 0, 0, 0, 1, 0, 0, 0}); err == nil {
		t.Error("a list that falls is read")
	}
	if b := AppendCntlIDs(nil, []uint16{1, 5, 9}, 5); !bytes.Equal(b[:8], []byte{2, 0, 5, 0, 9, 0, 0, 0}) {
		t.Errorf("%x", b[:8])
	}
	if b := AppendTable(nil, map[LogID]uint32{LogANA: 1}); b[4*0x0C] != 1 || len(b) != TableLen {
		t.Errorf("%x", b)
	}
	e := Effects{Admin: map[Opcode]uint32{AdminIdentify: EffectSupported}, IO: map[Opcode]uint32{OpWrite: EffectSupported | EffectContent}}
	if b := e.AppendTo(nil); b[24] != 1 || b[1024+4] != 3 || len(b) != EffectsLen {
		t.Error("effects")
	}
}

// again fails unless what was read, written and read once more is the same.
func again[T any, P interface {
	*T
	AppendTo([]byte) []byte
}](t *testing.T, v T, err error, parse func([]byte) (T, error)) {
	if err != nil {
		return
	}
	if v2, err := parse(P(&v).AppendTo(nil)); err != nil || !reflect.DeepEqual(v, v2) {
		t.Errorf("%+v is read again as %+v, %v", v, v2, err)
	}
}

// pointee makes a parser that returns a structure of one that returns a pointer.
func pointee[T any](parse func([]byte) (*T, error)) func([]byte) (T, error) {
	return func(b []byte) (v T, err error) {
		p, err := parse(b)
		if err == nil {
			v = *p
		}
		return v, err
	}
}

func FuzzParsers(f *testing.F) {
	f.Add(AppendANA(nil, 3, []ANAGroup{{ID: 1, State: 1, Namespaces: []uint32{1, 2}}}, false))
	f.Add((&Identifiers{UUID: [16]byte{1}}).AppendTo(nil))
	f.Add((&Namespace{Formats: []LBAFormat{{0, 9, 0}}}).AppendTo(nil))
	f.Add((&ConnectData{Subsystem: "nqn.s", Host: "nqn.h"}).AppendTo(nil))
	f.Add(AppendDiscovery(nil, 1, []DiscoveryEntry{{Transport: TransportTCP, Service: "4420", Subsystem: "nqn.s", Address: "10.0.0.1"}})[DiscoveryEntryLen:])
	f.Add(AppendDiscovery(nil, 1, []DiscoveryEntry{{Transport: TransportRDMA}}))
	f.Add((&Controller{Serial: "s", Model: "m", Firmware: "f", Subsystem: "nqn.s"}).AppendTo(nil))
	f.Add((&ReservationState{Type: 1, Registrants: []Registrant{{CntlID: 1, Holder: true, Key: 7}}}).AppendTo(nil))
	f.Add((&SMART{Temperature: 310, UnitsRead: 1 << 40}).AppendTo(nil))
	f.Add((&ErrorEntry{Count: 1, SQID: 1, CID: 2}).AppendTo(nil))
	f.Add((&SanitizeLog{}).AppendTo(nil))
	f.Add((&ReservationLog{Count: 1, Notice: 1}).AppendTo(nil))
	f.Add(AppendNSIDs(nil, []uint32{1, 7}, 0))
	f.Add(AppendCopyRange(nil, BlockRange{LBA: 1, Blocks: 8}))
	f.Fuzz(func(t *testing.T, b []byte) {
		if changes, g, err := ParseANA(b); err == nil {
			for _, x := range g {
				if len(x.Namespaces) > len(b)/4 {
					t.Fatal("more namespaces than bytes")
				}
			}
			if c2, g2, err := ParseANA(AppendANA(nil, changes, g, false)); err != nil || c2 != changes || !reflect.DeepEqual(g, g2) {
				t.Errorf("%+v is read again as %+v, %v", g, g2, err)
			}
		}
		ids, err := ParseIdentifiers(b)
		again(t, ids, err, ParseIdentifiers)
		ns, err := pointee(ParseNamespace)(b)
		if err == nil {
			ns.BlockSize()
		}
		again(t, ns, err, pointee(ParseNamespace))
		c, err := ParseConnectData(b)
		again(t, c, err, ParseConnectData)
		k, err := pointee(ParseController)(b)
		if len(k.Subsystem) < NQNField { // what is written ends with a NUL
			again(t, k, err, pointee(ParseController))
		}
		ParseDiscoveryHeader(b)
		if e, err := ParseDiscoveryEntry(b); err == nil && len(e.Subsystem) < NQNField && len(e.Address) < 256 && len(e.Service) < 32 {
			if e.Transport == TransportRDMA && e.Provider == 0 {
				e.Provider = ProviderUnspecified
			}
			if e2, err := ParseDiscoveryEntry(AppendDiscovery(nil, 0, []DiscoveryEntry{e})[DiscoveryEntryLen:]); err != nil || e2 != e {
				t.Errorf("%+v is read again as %+v, %v", e, e2, err)
			}
		}
		if ids, err := ParseNSIDs(b); err == nil && len(ids) <= MaxActive {
			if again, err := ParseNSIDs(AppendNSIDs(nil, ids, 0)); err != nil || !slices.Equal(ids, again) {
				t.Errorf("%v are read again as %v, %v", ids, again, err)
			}
		}
		r, err := pointee(ParseReservationState)(b)
		again(t, r, err, pointee(ParseReservationState))
		l, err := ParseReservationLog(b)
		again(t, l, err, ParseReservationLog)
		z, err := ParseSanitizeLog(b)
		again(t, z, err, ParseSanitizeLog)
		s, err := pointee(ParseSMART)(b)
		again(t, s, err, pointee(ParseSMART))
		e, err := ParseErrorEntry(b)
		again(t, e, err, ParseErrorEntry)
		x, err := ParseCommandSetLimits(b)
		again(t, x, err, ParseCommandSetLimits)
		if ranges, err := ParseCopyRanges(b, len(b)/CopyRangeLen); err == nil {
			var out []byte
			for _, r := range ranges {
				out = AppendCopyRange(out, r)
			}
			if again, err := ParseCopyRanges(out, len(ranges)); err != nil || !slices.Equal(ranges, again) {
				t.Errorf("%v are read again as %v, %v", ranges, again, err)
			}
		}
	})
}
