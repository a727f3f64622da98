package nvmf_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"softiser/blockdev"
	"softiser/internal/await"
	"softiser/internal/nvme"
	"softiser/target"
	"softiser/target/nvmf"
)

// What Linux insists on: see nvme_init_identify of its core.c.
func TestIdentify(t *testing.T) {
	r := open(t, nil)
	h := r.attach(hostNQN, 10, 0)
	c, err := nvme.ParseController(h.identify(nvme.CNSController, 0))
	if err != nil {
		t.Fatal(err)
	}
	if c.CntlID != h.data.CntlID || c.Subsystem != subNQN || c.KAS == 0 || c.SGLS != nvme.SGLSupported|nvme.SGLInCapsuleOffset|nvme.SGLTransportBlock || c.ICDOff != 0 || c.Type != nvme.TypeIO ||
		c.MaxNamespaces == 0 || c.MaxNamespaces > c.Namespaces || c.IOCCSZ < 4 || c.IORCSZ < 1 || c.MaxCmd == 0 || c.SQES != 0x66 || c.CQES != 0x44 ||
		c.CMIC&nvme.SharedControllers == 0 || c.CTRATT&nvme.AttrHostID128 == 0 {
		t.Errorf("%+v", c)
	}
	n, err := nvme.ParseNamespace(h.identify(nvme.CNSNamespace, 1))
	if err != nil {
		t.Fatal(err)
	}
	if bs, err := n.BlockSize(); err != nil || bs != 512 || n.Size != 16<<20/512 || n.Capacity != n.Size || n.NMIC&1 == 0 {
		t.Errorf("%d, %v, %+v", bs, err, n)
	}
	ids, err := nvme.ParseIdentifiers(h.identify(nvme.CNSDescriptors, 1))
	if err != nil || ids.UUID == [16]byte{} || ids.NGUID != n.NGUID || ids.EUI64 != n.EUI64 || ids.NGUID == [16]byte{} {
		t.Errorf("%+v, %v", ids, err)
	}
	if l, err := nvme.ParseNSIDs(h.identify(nvme.CNSActiveNamespaces, 0)); err != nil || len(l) != 1 || l[0] != 1 {
		t.Errorf("%v, %v", l, err)
	}
	if b := h.identify(nvme.CNSNamespace, 7); !bytes.Equal(b, make([]byte, 4096)) {
		t.Error("a namespace that is not there has a structure")
	}
	if b := h.identify(nvme.CNSCommandSetNamespace, 1); !bytes.Equal(b, make([]byte, 4096)) {
		t.Error("the NVM command set says something of a namespace")
	}
	if cap := nvme.Cap(h.property(nvme.PropCAP)); cap.Entries() != 128 || cap&nvme.CapNVM == 0 || cap.Timeout() == 0 {
		t.Errorf("CAP %x", uint64(cap))
	}
	if b := h.identify(nvme.CNSAttachedControllers, 7); binary.LittleEndian.Uint16(b) != 0 {
		t.Error("a namespace that is not there has controllers")
	}
	for name, s := range map[string]nvme.SQE{
		"another command set":                            sqe(func(s *nvme.SQE) { s.NewIdentify(nvme.CNSCommandSetNamespace, 1); s[47] = 2 }),
		"command sets of a controller that is not there": sqe(func(s *nvme.SQE) { s.NewIdentify(nvme.CNSCommandSets, 0); s[42], s[43] = 0xEF, 0xFF }),
		"controllers attached to namespace 0":            sqe(func(s *nvme.SQE) { s.NewIdentify(nvme.CNSAttachedControllers, 0) }),
		"controllers attached to all namespaces":         sqe(func(s *nvme.SQE) { s.NewIdentify(nvme.CNSAttachedControllers, nvme.NSIDAll) }),
		"unknown CNS":                                    sqe(func(s *nvme.SQE) { s.NewIdentify(0x44, 0) }),
		"namespace 0":                                    sqe(func(s *nvme.SQE) { s.NewIdentify(nvme.CNSNamespace, 0) }),
		"namespace too high":                             sqe(func(s *nvme.SQE) { s.NewIdentify(nvme.CNSNamespace, 1025) }),
	} {
		if _, err := h.do(s, make([]byte, 4096), nil); err == nil {
			t.Errorf("%s: is answered", name)
		}
	}
}

func sqe(f func(*nvme.SQE)) (s nvme.SQE) { f(&s); return s }

// A property that is not there is refused without DNR, as nvme-cli wants it.
func TestNoSuchProperty(t *testing.T) {
	h := open(t, nil).attach(hostNQN, 10, 0)
	_, err := h.do(sqe(func(s *nvme.SQE) { s.NewPropertyGet(0x0C) }), nil, nil)
	var st nvme.Status
	if !errors.As(err, &st) || st != nvme.InvalidField {
		t.Error(err)
	}
}

// The identity of a volume is the same in every subsystem and after a reconnect.
func TestIdentity(t *testing.T) {
	r := open(t, nil)
	if err := r.srv.AddSubsystem(nvmf.SubsystemConfig{NQN: "nqn.second", Namespaces: []nvmf.NamespaceConfig{{NSID: 9, Volume: r.vol}}}); err != nil {
		t.Fatal(err)
	}
	a := r.attach(hostNQN, 10, 0).identify(nvme.CNSDescriptors, 1)
	b := r.attachTo("nqn.second", hostNQN, 10, 0).identify(nvme.CNSDescriptors, 9)
	if !bytes.Equal(a, b) {
		t.Errorf("%x\n%x", a[:64], b[:64])
	}
}

// Lists of controllers ascend, and begin where the host says.
func TestControllerLists(t *testing.T) {
	r := open(t, nil)
	h := r.attach(hostNQN, 10, 0)
	for range 11 {
		r.attach(hostNQN, 10, 0)
	}
	for _, c := range []nvme.CNS{nvme.CNSControllers, nvme.CNSAttachedControllers} {
		var s nvme.SQE
		s.NewIdentify(c, 1)
		s[42] = 3
		b := make([]byte, nvme.IdentifyLen)
		if _, err := h.do(s, b, nil); err != nil {
			t.Fatal(err)
		}
		var got []uint16
		for i := range binary.LittleEndian.Uint16(b) {
			got = append(got, binary.LittleEndian.Uint16(b[2+2*i:]))
		}
		if !slices.Equal(got, []uint16{3, 4, 5, 6, 7, 8, 9, 10, 11, 12}) {
			t.Errorf("CNS %02x from 3 on: %d", c, got)
		}
	}
}

func TestLogPages(t *testing.T) {
	r := open(t, nil)
	h := r.attach(hostNQN, 10, 1)
	if err := h.io[0].write(0, pattern(4096, 1)); err != nil {
		t.Fatal(err)
	}
	if _, err := h.io[0].do(rw(nvme.OpRead, 1<<40, 1), make([]byte, 512), nil); err == nil {
		t.Fatal("a read behind the end")
	}
	e, err := nvme.ParseErrorEntry(h.log(nvme.LogError, 64))
	if err != nil || e.Status != nvme.LBAOutOfRange|nvme.DoNotRetry || e.SQID != 1 || e.LBA != 1<<40 || e.NSID != 1 || e.Count != 1 {
		t.Errorf("%+v, %v", e, err)
	}
	s, err := nvme.ParseSMART(h.log(nvme.LogSMART, nvme.SMARTLen))
	if err != nil || s.Writes != 1 || s.ErrorEntries != 1 {
		t.Errorf("%+v, %v", s, err)
	}
	if b := h.log(nvme.LogCommandEffects, nvme.EffectsLen); b[4*int(nvme.AdminIdentify)] != 1 || b[1024+4*int(nvme.OpWrite)] != 3 || b[1024+4*int(nvme.OpRead)] != 1 {
		t.Errorf("effects %x %x", b[:64], b[1024:1060])
	}
	for _, id := range []nvme.LogID{nvme.LogSupported, nvme.LogFirmware, nvme.LogChangedNamespaces, nvme.LogFeatures, nvme.LogMICommands, nvme.LogReservation} {
		h.log(id, 64)
	}
	var q nvme.SQE
	q.NewGetLogPage(0x55, nvme.NSIDAll, 0, 64)
	if _, err := h.do(q, make([]byte, 64), nil); !errors.Is(err, nvme.InvalidLogPage|nvme.DoNotRetry) {
		t.Errorf("an unknown page: %v", err)
	}
	q.NewGetLogPage(nvme.LogSMART, nvme.NSIDAll, 513, 64)
	if _, err := h.do(q, make([]byte, 64), nil); !errors.Is(err, nvme.InvalidField|nvme.DoNotRetry) {
		t.Errorf("an odd offset: %v", err)
	}
	q.NewGetLogPage(nvme.LogSMART, nvme.NSIDAll, 516, 64)
	if _, err := h.do(q, make([]byte, 64), nil); !errors.Is(err, nvme.InvalidField|nvme.DoNotRetry) {
		t.Errorf("behind the end: %v", err)
	}
	// What is refused does not take the changes that the page tells of.
	if err := r.vol.(blockdev.Resizer).Resize(32 << 20); err != nil {
		t.Fatal(err)
	}
	q.NewGetLogPage(nvme.LogChangedNamespaces, nvme.NSIDAll, 8192, 64)
	if _, err := h.do(q, make([]byte, 64), nil); !errors.Is(err, nvme.InvalidField|nvme.DoNotRetry) {
		t.Errorf("changes behind the end: %v", err)
	}
	if b := h.log(nvme.LogChangedNamespaces, nvme.ChangedLen); b[0] != 1 {
		t.Errorf("changed namespaces %x after a refused command", b[:8])
	}
	q.NewGetLogPage(nvme.LogSMART, nvme.NSIDAll, 0, 1<<30)
	if _, err := h.do(q, make([]byte, 64), nil); !errors.Is(err, nvme.SGLDataLengthInvalid|nvme.DoNotRetry) {
		t.Errorf("more than there is room for: %v", err)
	}
}

func TestFeatures(t *testing.T) {
	r := open(t, nil)
	h := r.attach(hostNQN, 10, 0)
	get := func(id nvme.FeatureID) uint64 {
		t.Helper()
		var s nvme.SQE
		s.NewGetFeatures(id, 1)
		e, err := h.do(s, nil, nil)
		if err != nil {
			t.Fatalf("feature %02x: %v", id, err)
		}
		return e.Result()
	}
	set := func(id nvme.FeatureID, v uint32) (uint64, error) {
		var s nvme.SQE
		s.NewSetFeatures(id, 1, v)
		e, err := h.do(s, nil, nil)
		if e == nil {
			t.Fatal(err)
		}
		return e.Result(), err
	}
	if n, err := set(nvme.FeatureQueues, nvme.QueueCounts(4, 4)); err != nil || n != uint64(nvme.QueueCounts(128, 128)) {
		t.Errorf("queues: %x, %v", n, err)
	}
	if _, err := set(nvme.FeatureAsyncEvents, 0x900); err != nil || get(nvme.FeatureAsyncEvents) != 0x900 {
		t.Errorf("events: %v", err)
	}
	if _, err := set(nvme.FeatureKeepAlive, 1500); err != nil || get(nvme.FeatureKeepAlive) != 2000 {
		t.Errorf("keep alive: %v, %d", err, get(nvme.FeatureKeepAlive))
	}
	if _, err := set(nvme.FeatureKeepAlive, 1<<32-1); err != nil || get(nvme.FeatureKeepAlive) != 4294967000 {
		t.Errorf("the longest keep alive: %v, %d", err, get(nvme.FeatureKeepAlive))
	}
	if _, err := set(nvme.FeatureKeepAlive, 0); !errors.Is(err, nvme.KeepAliveInvalid|nvme.DoNotRetry) {
		t.Errorf("no keep alive: %v", err)
	}
	if _, err := set(nvme.FeatureArbitration, 5); err != nil || get(nvme.FeatureArbitration) != 5 {
		t.Errorf("arbitration: %v", err)
	}
	if get(nvme.FeatureWriteCache) != 1 {
		t.Error("no write cache")
	}
	if _, err := set(nvme.FeatureWriteCache, 0); !errors.Is(err, nvme.FeatureNotChangeable|nvme.DoNotRetry) {
		t.Errorf("write cache off: %v", err)
	}
	var s nvme.SQE
	s.NewGetFeatures(nvme.FeatureHostID, 0)
	s.SetCDW(11, 1)
	id := make([]byte, 16)
	if _, err := h.do(s, id, nil); err != nil || id[15] != 10 {
		t.Errorf("host identifier %x, %v", id, err)
	}
	if _, err := set(0x7F, 1); !errors.Is(err, nvme.InvalidField|nvme.DoNotRetry) {
		t.Errorf("unknown feature: %v", err)
	}
}

// A resize reaches every controller: as an event, a changed list and another size.
func TestResizeEvent(t *testing.T) {
	r := open(t, nil)
	h := r.attach(hostNQN, 10, 1)
	var s nvme.SQE
	s.NewSetFeatures(nvme.FeatureAsyncEvents, 0, nvme.NoticeNamespace)
	if _, err := h.do(s, nil, nil); err != nil {
		t.Fatal(err)
	}
	s.Init(nvme.AdminAsyncEvent, 0)
	first := h.start(s, nil, nil)
	if err := r.vol.(blockdev.Resizer).Resize(32 << 20); err != nil {
		t.Fatal(err)
	}
	e, err := h.result(first)
	if err != nil || nvme.Event(e.DW0()) != nvme.EventNamespaceChanged {
		t.Fatalf("%v, %v", e, err)
	}
	// No second event before the log page has been read.
	second := h.start(s, nil, nil)
	if err := r.vol.(blockdev.Resizer).Resize(48 << 20); err != nil {
		t.Fatal(err)
	}
	h.property(nvme.PropCSTS) // whatever was sent has arrived
	select {
	case <-second.done:
		t.Fatal("an event before the log page of the last one was read")
	default:
	}
	if b := h.log(nvme.LogChangedNamespaces, 4096); b[0] != 1 || b[4] != 0 {
		t.Errorf("changed namespaces %x", b[:8])
	}
	if e, err := h.result(second); err != nil || nvme.Event(e.DW0()) != nvme.EventNamespaceChanged {
		t.Fatalf("%v, %v", e, err)
	}
	n, _ := nvme.ParseNamespace(h.identify(nvme.CNSNamespace, 1))
	if n.Size != 48<<20/512 {
		t.Errorf("%d blocks", n.Size)
	}
	if err := h.io[0].write(40<<20/512, pattern(4096, 3)); err != nil {
		t.Error(err)
	}
}

// More event requests than a controller holds.
func TestEventLimit(t *testing.T) {
	r := open(t, nil)
	h := r.attach(hostNQN, 10, 0)
	var s nvme.SQE
	s.Init(nvme.AdminAsyncEvent, 0)
	for range 4 {
		h.start(s, nil, nil)
	}
	if _, err := h.do(s, nil, nil); !errors.Is(err, nvme.AERLimitExceeded) {
		t.Error(err)
	}
}

// The discovery service tells a host of the subsystems that it may connect to, of no
// others, and when that changes.
func TestDiscovery(t *testing.T) {
	r := open(t, func(_ *target.Config, s *nvmf.SubsystemConfig) { s.Hosts = []nvmf.HostRule{{NQN: hostNQN}} })
	names := func(h *host) (l []string, gen uint64) {
		t.Helper()
		gen, n, err := nvme.ParseDiscoveryHeader(h.log(nvme.LogDiscovery, 1024))
		if err != nil {
			t.Fatal(err)
		}
		b := h.log(nvme.LogDiscovery, 1024*(n+1))
		var overRDMA []string
		for i := range n {
			e, err := nvme.ParseDiscoveryEntry(b[1024*(i+1):])
			if err != nil || e.Family != nvme.FamilyIPv4 || e.Address != "127.0.0.1" || e.Service == "" {
				t.Errorf("%+v, %v", e, err)
			}
			switch e.Transport {
			case nvme.TransportTCP:
				l = append(l, e.Subsystem)
			case nvme.TransportRDMA:
				overRDMA = append(overRDMA, e.Subsystem)
			}
		}
		if !slices.Equal(l, overRDMA) {
			t.Errorf("%v over RDMA, %v over TCP", overRDMA, l)
		}
		return l, gen
	}
	guest := r.attachTo(nvme.DiscoveryNQN, "nqn.guest", 1, 0)
	owner := r.attachTo(nvme.DiscoveryNQN, hostNQN, 2, 0)
	if l, _ := names(guest); len(l) != 1 || l[0] != nvme.DiscoveryNQN {
		t.Errorf("the guest sees %v", l)
	}
	l, gen := names(owner)
	if len(l) != 2 || l[1] != subNQN {
		t.Errorf("the owner sees %v", l)
	}
	var s nvme.SQE
	s.NewSetFeatures(nvme.FeatureAsyncEvents, 0, nvme.NoticeDiscovery)
	if _, err := owner.do(s, nil, nil); err != nil {
		t.Fatal(err)
	}
	s.Init(nvme.AdminAsyncEvent, 0)
	event := owner.start(s, nil, nil)
	if err := r.srv.RemoveSubsystem(context.Background(), subNQN); err != nil {
		t.Fatal(err)
	}
	if e, err := owner.result(event); err != nil || nvme.Event(e.DW0()) != nvme.EventDiscoveryChanged {
		t.Errorf("%v, %v", e, err)
	}
	if l, now := names(owner); len(l) != 1 || now == gen {
		t.Errorf("the owner sees %v, generation %d after %d", l, now, gen)
	}
	var id nvme.SQE
	id.NewIdentify(nvme.CNSActiveNamespaces, 0)
	if _, err := owner.do(id, make([]byte, 4096), nil); err == nil {
		t.Error("a discovery controller has namespaces")
	}
}

// Removing a subsystem ends its controllers and frees its volumes.
func TestRemoveSubsystem(t *testing.T) {
	r := open(t, nil)
	h := r.attach(hostNQN, 10, 2)
	if err := h.io[0].write(0, pattern(1<<20, 1)); err != nil {
		t.Fatal(err)
	}
	if err := r.srv.RemoveSubsystem(context.Background(), subNQN); err != nil {
		t.Fatal(err)
	}
	for _, q := range append(h.io, h.queue) {
		<-q.done
	}
	if err := r.srv.AddSubsystem(nvmf.SubsystemConfig{NQN: subNQN, Namespaces: []nvmf.NamespaceConfig{{NSID: 2, Volume: r.vol}}}); err != nil {
		t.Fatal(err)
	}
	if err := r.srv.RemoveSubsystem(context.Background(), "nqn.other"); err == nil {
		t.Error("a subsystem that is not there is removed")
	}
}

// withHook is a log that calls withHost when a logger is made that tells a host.
type withHook struct {
	zapcore.Core
	withHost func()
}

func (c withHook) With(f []zapcore.Field) zapcore.Core {
	if slices.ContainsFunc(f, func(f zapcore.Field) bool { return f.Key == "host" }) {
		c.withHost()
	}
	return c
}

// A subsystem that is removed while a host connects takes the controller along that is being made.
func TestRemoveSubsystemWhileConnecting(t *testing.T) {
	var srv atomic.Pointer[target.Server]
	removed := make(chan error, 1)
	r := open(t, func(c *target.Config, _ *nvmf.SubsystemConfig) {
		c.Log = zap.New(withHook{zapcore.NewNopCore(), func() { removed <- srv.Load().RemoveSubsystem(context.Background(), subNQN) }})
	})
	srv.Store(r.srv)
	d := nvme.ConnectData{HostID: nvme.HostID{1}, CntlID: nvme.CntlIDDynamic, Subsystem: subNQN, Host: hostNQN}
	if _, err := dial(t, r.addr).connect(0, d, time.Minute); !errors.Is(err, nvme.ConnectControllerBusy) {
		t.Error(err)
	}
	if err := <-removed; err != nil {
		t.Error(err)
	}
	await.True(t, "there is no controller", func() bool { return len(r.srv.Controllers()) == 0 })
}

// Every command that the effects log does not have is refused for good, and Identify does not
// claim it: hosts make no namespaces, attach none, and mark no blocks as bad.
func TestWhatIsNotThere(t *testing.T) {
	r := open(t, nil)
	h := r.attach(hostNQN, 10, 1)
	effects := h.log(nvme.LogCommandEffects, 4096)
	absent := func(q *queue, table []byte, nsid uint32) (n int) {
		for op := range 256 {
			if nvme.Opcode(op) == nvme.OpFabrics || binary.LittleEndian.Uint32(table[4*op:])&nvme.EffectSupported != 0 {
				continue
			}
			n++
			var s nvme.SQE
			s.Init(nvme.Opcode(op), nsid)
			if _, err := q.do(s, nil, nil); !errors.Is(err, nvme.InvalidOpcode|nvme.DoNotRetry) {
				t.Errorf("opcode %02x, namespace %d: %v", op, nsid, err)
			}
		}
		return n
	}
	for _, nsid := range []uint32{0, 1, nvme.NSIDAll} {
		if n, m := absent(h.queue, effects, nsid), absent(h.io[0], effects[1024:], nsid); n < 240 || m < 240 {
			t.Errorf("%d admin commands and %d I/O commands are refused", n, m)
		}
	}
	c, err := nvme.ParseController(h.identify(nvme.CNSController, 0))
	const claims = nvme.HasCompare | nvme.HasDSM | nvme.HasWriteZeroes | nvme.HasReservations | nvme.HasVerify | nvme.HasCopy
	if err != nil || c.OACS&^nvme.HasFormat != 0 || c.ONCS != claims {
		t.Errorf("OACS %x, ONCS %x, %v", c.OACS, c.ONCS, err)
	}
}
