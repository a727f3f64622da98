package nvmf_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"softiser/blockdev"
	"softiser/blockdev/faulty"
	"softiser/internal/await"
	"softiser/internal/nvme"
	"softiser/internal/nvmetcp"
	"softiser/target"
	"softiser/target/nvmf"
)

// Every refusal of Connect: its status, and which field is wrong.
func TestConnectRefused(t *testing.T) {
	r := open(t, func(_ *target.Config, s *nvmf.SubsystemConfig) {
		s.Hosts = []nvmf.HostRule{{NQN: "nqn.good*"}, {NQN: "nqn.far", Networks: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}, {NQN: hostNQN}}
	})
	h := r.attach(hostNQN, 10, 1)
	admin := nvme.ConnectData{HostID: nvme.HostID{1}, CntlID: nvme.CntlIDDynamic, Subsystem: subNQN, Host: "nqn.good"}
	io := h.data
	for _, tt := range []struct {
		name   string
		change func(c nvme.Connect, d *nvme.ConnectData)
		data   func([]byte) []byte
		status nvme.Status
		result uint64
	}{
		{"record format", func(c nvme.Connect, d *nvme.ConnectData) { c.SQE[40] = 1 }, nil, nvme.ConnectIncompatibleFormat, 0},
		{"subsystem", func(c nvme.Connect, d *nvme.ConnectData) { d.Subsystem = "nqn.other" }, nil, nvme.ConnectInvalidParameters, 0x10100},
		{"no subsystem", func(c nvme.Connect, d *nvme.ConnectData) { d.Subsystem = "" }, nil, nvme.ConnectInvalidParameters, 0x10100},
		{"no host", func(c nvme.Connect, d *nvme.ConnectData) { d.Host = "" }, nil, nvme.ConnectInvalidParameters, 0x10200},
		{"a host whose name is no text", func(c nvme.Connect, d *nvme.ConnectData) { d.Host = "nqn.good\xff" }, nil, nvme.ConnectInvalidParameters, 0x10200},
		{"host", func(c nvme.Connect, d *nvme.ConnectData) { d.Host = "nqn.bad" }, nil, nvme.ConnectInvalidHost, 0x10200},
		{"host from elsewhere", func(c nvme.Connect, d *nvme.ConnectData) { d.Host = "nqn.far" }, nil, nvme.ConnectInvalidHost, 0x10200},
		{"static controller", func(c nvme.Connect, d *nvme.ConnectData) { d.CntlID = nvme.CntlIDStatic }, nil, nvme.ConnectInvalidParameters, 0x10010},
		{"size 0", func(c nvme.Connect, d *nvme.ConnectData) { c.SetSQSize(0) }, nil, nvme.ConnectInvalidParameters, 0x2c},
		{"size beyond MQES", func(c nvme.Connect, d *nvme.ConnectData) { c.SetSQSize(128) }, nil, nvme.ConnectInvalidParameters, 0x2c},
		{"short data", nil, func(b []byte) []byte { return b[:512] }, nvme.SGLDataLengthInvalid, 0},
		{"long data", nil, func(b []byte) []byte { return append(b, b[:512]...) }, nvme.SGLDataLengthInvalid, 0},
		{"no controller", func(c nvme.Connect, d *nvme.ConnectData) { *d = io; c.SetQID(2); d.CntlID = 999 }, nil, nvme.ConnectInvalidParameters, 0x10010},
		{"another host's controller", func(c nvme.Connect, d *nvme.ConnectData) { *d = io; c.SetQID(2); d.Host = "nqn.good" }, nil, nvme.ConnectInvalidParameters, 0x10200},
		{"another host identifier", func(c nvme.Connect, d *nvme.ConnectData) { *d = io; c.SetQID(2); d.HostID[0]++ }, nil, nvme.ConnectInvalidParameters, 0x10200},
		{"queue beyond the limit", func(c nvme.Connect, d *nvme.ConnectData) { *d = io; c.SetQID(129) }, nil, nvme.ConnectInvalidParameters, 0x2a},
		{"queue that is there", func(c nvme.Connect, d *nvme.ConnectData) { *d = io; c.SetQID(1) }, nil, nvme.CommandSequenceError, 0},
		{"I/O queue of the discovery service", func(c nvme.Connect, d *nvme.ConnectData) { *d = io; c.SetQID(2); d.Subsystem = nvme.DiscoveryNQN }, nil, nvme.ConnectInvalidParameters, 0x10100},
	} {
		q := dial(t, r.addr)
		var s nvme.SQE
		c := s.NewConnect()
		c.SetSQSize(31)
		d := admin
		if tt.change != nil {
			tt.change(c, &d)
		}
		b := d.AppendTo(nil)
		if tt.data != nil {
			b = tt.data(b)
		}
		e, err := q.do(s, nil, b)
		if e == nil || !errors.Is(err, tt.status|nvme.DoNotRetry) || e.Result() != tt.result {
			t.Errorf("%s: %v, %+v; want %v, %x", tt.name, err, e, tt.status, tt.result)
		}
		q.close()
	}
	// The controller that was there has not noticed.
	if _, err := h.io[0].readBlocks(0, 512); err != nil {
		t.Error(err)
	}
}

// Where a host may come from counts for each of its queues: who knows the names of a
// controller and of its host is not let in to it from elsewhere.
func TestIOQueueFromElsewhere(t *testing.T) {
	here := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}
	r := open(t, func(_ *target.Config, s *nvmf.SubsystemConfig) {
		s.Hosts = []nvmf.HostRule{{NQN: hostNQN, Networks: []netip.Prefix{netip.MustParsePrefix("127.0.0.2/32")}}}
	})
	r.from = here
	h := r.attach(hostNQN, 10, 1)
	e, err := dialFrom(t, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 3)}, r.addr).connect(2, h.data, 0)
	if e == nil || !errors.Is(err, nvme.ConnectInvalidHost|nvme.DoNotRetry) || e.Result() != 0x10200 {
		t.Errorf("an I/O queue from an address that the host may not have: %v, %+v", err, e)
	}
	if _, err := dialFrom(t, here, r.addr).connect(2, h.data, 0); err != nil {
		t.Error(err)
	}
}

// Nothing but Connect comes first, and Connect comes once.
func TestConnectOrder(t *testing.T) {
	r := open(t, nil)
	q := dial(t, r.addr)
	var s nvme.SQE
	s.NewPropertyGet(nvme.PropCAP)
	if _, err := q.do(s, nil, nil); !errors.Is(err, nvme.CommandSequenceError|nvme.DoNotRetry) {
		t.Errorf("a property before Connect: %v", err)
	}
	if _, err := q.do(rw(nvme.OpRead, 0, 1), make([]byte, 512), nil); !errors.Is(err, nvme.CommandSequenceError|nvme.DoNotRetry) {
		t.Errorf("a read before Connect: %v", err)
	}
	d := nvme.ConnectData{HostID: nvme.HostID{1}, CntlID: nvme.CntlIDDynamic, Subsystem: subNQN, Host: hostNQN}
	e, err := q.connect(0, d, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := q.connect(0, d, time.Minute); !errors.Is(err, nvme.CommandSequenceError|nvme.DoNotRetry) {
		t.Errorf("Connect again: %v", err)
	}
	var id nvme.SQE
	id.NewIdentify(nvme.CNSController, 0)
	if _, err := q.do(id, make([]byte, 4096), nil); !errors.Is(err, nvme.CommandSequenceError|nvme.DoNotRetry) {
		t.Errorf("Identify before CC.EN: %v", err)
	}
	d.CntlID = nvme.ConnectResult(e.DW0()).CntlID()
	if _, err := dial(t, r.addr).connect(1, d, 0); !errors.Is(err, nvme.CommandSequenceError|nvme.DoNotRetry) {
		t.Errorf("an I/O queue before CC.EN: %v", err)
	}
}

// connectsAtOnce sends two Connect commands, one behind the other, whose data is to be fetched:
// both are there before either is decided.
func (q *queue) connectsAtOnce(ids [2]uint16, data [2]nvme.ConnectData) (c [2]*command) {
	var both []byte
	for i, d := range data {
		var s nvme.SQE
		k := s.NewConnect()
		k.SetQID(ids[i])
		k.SetSQSize(31)
		s.SetCID(uint16(i + 1))
		s.SGL().SetBlock(nvme.SGLTransport, 0, nvme.ConnectDataLen)
		var p nvmetcp.CapsuleCmd
		*p.SQE() = s
		p.SetHeader(q.digests, 0, 0)
		both = append(both, p[:]...)
		c[i] = &command{cid: s.CID(), out: d.AppendTo(nil), done: make(chan struct{})}
		q.mu.Lock()
		q.wait[s.CID()] = c[i]
		q.mu.Unlock()
	}
	q.send(both, nil)
	return c
}

// Of two Connects on one connection that are under way at once the first one counts: the
// other makes no controller, nor a queue, which nothing would ever end.
func TestTwoConnectsAtOnce(t *testing.T) {
	r := open(t, nil)
	h := r.attach(hostNQN, 10, 0)
	admin := h.data
	admin.CntlID = nvme.CntlIDDynamic
	for _, tt := range []struct {
		name string
		ids  [2]uint16
		data nvme.ConnectData
	}{{"admin queues", [2]uint16{0, 0}, admin}, {"I/O queues", [2]uint16{1, 2}, h.data}} {
		q := dial(t, r.addr)
		c := q.connectsAtOnce(tt.ids, [2]nvme.ConnectData{tt.data, tt.data})
		if e, err := q.result(c[0]); err != nil || !e.Status().OK() {
			t.Errorf("%s: the first: %v, %v", tt.name, e, err)
		}
		if e, err := q.result(c[1]); err != nil || e.Status() != nvme.CommandSequenceError|nvme.DoNotRetry {
			t.Errorf("%s: the second: %v, %v", tt.name, e, err)
		}
		q.close()
	}
	await.True(t, "the connections' controllers and queues have ended", func() bool {
		l := r.srv.Controllers()
		return len(l) == 1 && l[0].Queues == 0
	})
}

// Controller identifiers are not used again at once.
func TestControllerIDs(t *testing.T) {
	r := open(t, func(_ *target.Config, s *nvmf.SubsystemConfig) { s.MinCntlID, s.MaxCntlID = 100, 102 })
	var ids []uint16
	for range 4 {
		h := r.attach(hostNQN, 10, 0)
		ids = append(ids, h.data.CntlID)
		if l := r.srv.Controllers(); len(l) != 1 || l[0].ID != h.data.CntlID || l[0].Host != hostNQN || !l[0].Ready || l[0].Subsystem != subNQN {
			t.Errorf("%+v", l)
		}
		h.shutdown()
		await.True(t, "the target notices that the host is gone", func() bool { return len(r.srv.Controllers()) == 0 })
	}
	for i, want := range []uint16{100, 101, 102, 100} {
		if ids[i] != want {
			t.Errorf("controllers %v", ids)
			break
		}
	}
	stays := r.attach(hostNQN, 10, 0)
	r.attach(hostNQN, 10, 0).shutdown()
	await.True(t, "the target notices that the host is gone", func() bool { return len(r.srv.Controllers()) == 1 })
	r.attach(hostNQN, 10, 0) // the number after this one is taken
	if h := r.attach(hostNQN, 10, 0); h.data.CntlID == stays.data.CntlID {
		t.Errorf("two controllers are number %d", h.data.CntlID)
	}
	q := dial(t, r.addr)
	d := nvme.ConnectData{HostID: nvme.HostID{1}, CntlID: nvme.CntlIDDynamic, Subsystem: subNQN, Host: hostNQN}
	if _, err := q.connect(0, d, time.Minute); !errors.Is(err, nvme.ConnectControllerBusy) {
		t.Errorf("one more than there are identifiers: %v", err)
	}
}

// shutdown ends the controller as a host does, and waits until the target has noticed.
func (h *host) shutdown() {
	h.t.Helper()
	var s nvme.SQE
	s.NewPropertySet(nvme.PropCC, uint64(nvme.NewConfig(nvme.CommandSetAll, true).WithShutdown(nvme.ShutdownNormal)))
	if _, err := h.do(s, nil, nil); err != nil {
		h.t.Fatal(err)
	}
	h.shutdownDone()
	for _, q := range h.io {
		q.nc.(interface{ CloseWrite() error }).CloseWrite()
		<-q.done
	}
	h.nc.(interface{ CloseWrite() error }).CloseWrite()
	<-h.done
}

// shutdownDone waits until the shutdown that the host has asked for is complete.
func (h *host) shutdownDone() {
	h.t.Helper()
	await.True(h.t, "the shutdown is complete", func() bool {
		st := nvme.CtrlStatus(h.property(nvme.PropCSTS))
		if st.Ready() || st.Fatal() || !st.ShutdownBegun() {
			h.t.Fatalf("CSTS %x after a shutdown", st)
		}
		return st.ShutdownDone()
	})
}

// A controller that has been shut down carries nothing out any more.
func TestNothingAfterShutdown(t *testing.T) {
	h := open(t, nil).attach(hostNQN, 10, 1)
	if _, err := h.do(sqe(func(s *nvme.SQE) {
		s.NewPropertySet(nvme.PropCC, uint64(nvme.NewConfig(nvme.CommandSetAll, true).WithShutdown(nvme.ShutdownNormal)))
	}), nil, nil); err != nil {
		t.Fatal(err)
	}
	if err := h.io[0].write(0, pattern(512, 1)); !errors.Is(err, nvme.CommandSequenceError|nvme.DoNotRetry) {
		t.Errorf("a write: %v", err)
	}
}

// The controller ends with its admin queue, and with a queue whose host breaks the
// protocol: its other queues are closed.
func TestQueueLost(t *testing.T) {
	for name, lose := range map[string]func(*host){
		"the admin queue is closed": func(h *host) { h.nc.Close() },
		"a breach on an I/O queue":  func(h *host) { h.io[0].nc.Write(make([]byte, 128)) },
	} {
		r := open(t, nil)
		h := r.attach(hostNQN, 10, 2)
		lose(h)
		for _, q := range append(h.io, h.queue) {
			<-q.done
		}
		// The host comes back as another controller.
		if n := r.attach(hostNQN, 10, 1); n.data.CntlID == h.data.CntlID {
			t.Errorf("%s: the identifier of a controller that has just gone is used again", name)
		}
	}
}

// A host may close its I/O queues first and shut the controller down afterwards, as Linux
// does, or connect one of them again.
func TestIOQueueCloses(t *testing.T) {
	r := open(t, slow)
	h := r.attach(hostNQN, 10, 2)
	for range 2 {
		if err := h.io[0].write(0, pattern(512, 1)); err != nil {
			t.Fatal(err)
		}
	}
	h.io[0].start(rw(nvme.OpWrite, 0, 1), nil, pattern(512, 2)) // is held back
	for _, q := range h.io {
		q.close()
	}
	await.True(t, "the target notices that the queues are closed", func() bool { return r.srv.Controllers()[0].Queues == 0 })
	q := dial(t, r.addr)
	if _, err := q.connect(1, h.data, 0); err != nil {
		t.Errorf("the queue again: %v", err)
	}
	q.close()
	h.io = nil
	h.shutdown()
	if err := r.srv.RemoveSubsystem(context.Background(), subNQN); err != nil { // waits for every command
		t.Error(err)
	}
	got := make([]byte, 512)
	if _, err := r.vol.ReadAt(got, 0); err != nil || string(got) != string(pattern(512, 1)) {
		t.Errorf("the command of a closed queue took effect: %v", err)
	}
}

// A reset closes the I/O queues and keeps the admin queue.
func TestReset(t *testing.T) {
	r := open(t, nil)
	h := r.attach(hostNQN, 10, 2)
	var s nvme.SQE
	s.NewPropertySet(nvme.PropCC, uint64(nvme.NewConfig(nvme.CommandSetAll, false)))
	if _, err := h.do(s, nil, nil); err != nil {
		t.Fatal(err)
	}
	for _, q := range h.io {
		<-q.done
	}
	if st := nvme.CtrlStatus(h.property(nvme.PropCSTS)); st != 0 {
		t.Errorf("CSTS %x", st)
	}
	h.enable()
	q := dial(t, r.addr)
	if _, err := q.connect(1, h.data, 0); err != nil {
		t.Fatal(err)
	}
	if err := q.write(0, pattern(4096, 1)); err != nil {
		t.Error(err)
	}
}

// A reset leaves no Asynchronous Event Request behind: there is room for new ones afterwards, and an event
// whose log page was not read before is told again.
func TestResetAbortsEventRequests(t *testing.T) {
	r := open(t, nil)
	h := r.attach(hostNQN, 10, 1)
	var s nvme.SQE
	s.NewSetFeatures(nvme.FeatureAsyncEvents, 0, nvme.NoticeNamespace)
	if _, err := h.do(s, nil, nil); err != nil {
		t.Fatal(err)
	}
	var aer nvme.SQE
	aer.Init(nvme.AdminAsyncEvent, 0)
	told := h.start(aer, nil, nil)
	if err := r.vol.(blockdev.Resizer).Resize(32 << 20); err != nil {
		t.Fatal(err)
	}
	if _, err := h.result(told); err != nil {
		t.Fatal(err)
	}
	old := []*command{h.start(aer, nil, nil), h.start(aer, nil, nil), h.start(aer, nil, nil), h.start(aer, nil, nil)}
	s.NewPropertySet(nvme.PropCC, uint64(nvme.NewConfig(nvme.CommandSetAll, false)))
	if _, err := h.do(s, nil, nil); err != nil {
		t.Fatal(err)
	}
	for _, c := range old { // answered before the reset was
		select {
		case <-c.done:
		default:
			t.Fatal("a request of before the reset waits")
		}
		if e, err := h.result(c); err != nil || e.Status()&^nvme.DoNotRetry != nvme.AbortRequested {
			t.Errorf("a request of before the reset: %v, %v", e, err)
		}
	}
	h.enable()
	s.NewSetFeatures(nvme.FeatureAsyncEvents, 0, nvme.NoticeNamespace)
	if _, err := h.do(s, nil, nil); err != nil {
		t.Fatal(err)
	}
	told = h.start(aer, nil, nil)
	if err := r.vol.(blockdev.Resizer).Resize(48 << 20); err != nil {
		t.Fatal(err)
	}
	if e, err := h.result(told); err != nil || nvme.Event(e.DW0()) != nvme.EventNamespaceChanged {
		t.Errorf("after the reset: %v, %v", e, err)
	}
}

// A reset leaves no admin command behind either, whether there are I/O queues or not: what
// waits for another host's write does nothing when that has ended.
func TestResetAbortsAdminCommands(t *testing.T) {
	for _, queues := range []int{0, 1} {
		var dev *faulty.Device
		r := open(t, func(_ *target.Config, s *nvmf.SubsystemConfig) {
			dev = faulty.New(s.Namespaces[0].Volume, 1)
			s.Namespaces[0].Volume = dev
		})
		release := make(chan struct{})
		dev.SetRules(faulty.Rule{Op: faulty.Write, Off: 0, Len: 4096, Hold: release})
		other := r.attach("nqn.other", 11, 1)
		held := other.io[0].start(rw(nvme.OpWrite, 0, 8), nil, pattern(4096, 1))
		await.True(t, "storage holds a write", func() bool { return dev.Held() == 1 })
		h := r.attach(hostNQN, 10, queues)
		var s nvme.SQE
		s.NewSetFeatures(nvme.FeatureWriteProtect, 1, 1)
		waits := h.start(s, nil, nil)
		s.NewPropertySet(nvme.PropCC, uint64(nvme.NewConfig(nvme.CommandSetAll, false)))
		if _, err := h.do(s, nil, nil); err != nil {
			t.Fatal(err)
		}
		select {
		case <-waits.done:
			if e, err := h.result(waits); err != nil || e.Status() != nvme.AbortRequested {
				t.Errorf("%d I/O queues: %v, %v", queues, e, err)
			}
		default:
			t.Errorf("%d I/O queues: a command of before the reset waits", queues)
		}
		close(release)
		if e, err := other.io[0].result(held); err != nil || !e.Status().OK() {
			t.Error(e, err)
		}
		h.enable()
		if h.protected() != 0 {
			t.Errorf("%d I/O queues: a command of before the reset took effect", queues)
		}
	}
}

// A host that disables its controller and asks for a shutdown with the same write has reset it.
func TestResetWithShutdown(t *testing.T) {
	r := open(t, nil)
	h := r.attach(hostNQN, 10, 2)
	var s nvme.SQE
	s.NewPropertySet(nvme.PropCC, uint64(nvme.NewConfig(nvme.CommandSetAll, false).WithShutdown(nvme.ShutdownNormal)))
	if _, err := h.do(s, nil, nil); err != nil {
		t.Fatal(err)
	}
	h.shutdownDone()
	h.enable()
	if l := r.srv.Controllers(); len(l) != 1 || l[0].Queues != 0 {
		t.Errorf("I/O queues of before the reset: %+v", l)
	}
	for _, q := range h.io {
		q.gone()
	}
}

// What a host has set is as at the beginning after a reset (NVM Express 1.4 §5.21.1): it hears of
// no event that it has not asked for again.
func TestResetFeatures(t *testing.T) {
	r := open(t, nil)
	h := r.attach(hostNQN, 10, 1)
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
	set := map[nvme.FeatureID]uint32{nvme.FeatureAsyncEvents: nvme.NoticeNamespace, nvme.FeatureArbitration: 5, nvme.FeatureResvMask: nvme.ResvMaskReleased}
	for id, v := range set {
		var s nvme.SQE
		s.NewSetFeatures(id, 1, v)
		if _, err := h.do(s, nil, nil); err != nil || get(id) != uint64(v) {
			t.Fatalf("feature %02x: %v, %x", id, err, get(id))
		}
	}
	if err := r.vol.(blockdev.Resizer).Resize(32 << 20); err != nil { // is due, and nobody has asked for it yet
		t.Fatal(err)
	}
	var s nvme.SQE
	s.NewPropertySet(nvme.PropCC, uint64(nvme.NewConfig(nvme.CommandSetAll, false)))
	if _, err := h.do(s, nil, nil); err != nil {
		t.Fatal(err)
	}
	h.enable()
	for id := range set {
		if v := get(id); v != 0 {
			t.Errorf("feature %02x is %x after the reset", id, v)
		}
	}
	s.Init(nvme.AdminAsyncEvent, 0)
	waits := h.start(s, nil, nil)
	if err := r.vol.(blockdev.Resizer).Resize(48 << 20); err != nil {
		t.Fatal(err)
	}
	h.property(nvme.PropCSTS) // whatever was sent has arrived
	select {
	case <-waits.done:
		t.Error("an event that nobody has asked for since the reset")
	default:
	}
}

// A host that connects and says nothing more than ICReq does not hold its place for ever.
func TestConnectTimeout(t *testing.T) {
	r := open(t, func(c *target.Config, _ *nvmf.SubsystemConfig) { c.Timeouts.Login = 50 * time.Millisecond })
	nc, err := net.Dial("tcp", r.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	_ = nc.SetDeadline(time.Now().Add(ioTime))
	_, _ = nc.Write((&nvmetcp.ICReq{}).AppendTo(nil)) // its time may be over already
	if b, err := io.ReadAll(nc); os.IsTimeout(err) || len(b) != 0 && len(b) != nvmetcp.ICLen {
		t.Errorf("%d bytes, %v", len(b), err)
	}
}

// A host that is silent for longer than its keep alive timeout is gone, though storage does
// not answer for its commands, and its place is free for it again. What had not reached
// storage does nothing any more, and what storage has comes before what is written later.
func TestKeepAlive(t *testing.T) {
	var dev *faulty.Device
	r := open(t, func(_ *target.Config, s *nvmf.SubsystemConfig) {
		dev = faulty.New(s.Namespaces[0].Volume, 1)
		s.Namespaces[0].Volume = dev
	})
	idle := dial(t, r.addr)
	d := nvme.ConnectData{HostID: nvme.HostID{1}, CntlID: nvme.CntlIDDynamic, Subsystem: subNQN, Host: "nqn.idle"}
	if _, err := idle.connect(0, d, time.Millisecond); err != nil { // a second, by granularity
		t.Fatal(err)
	}
	h := r.attach(hostNQN, 10, 1)
	q := h.io[0]
	release := make(chan struct{})
	dev.SetRules(faulty.Rule{Op: faulty.Lease, Len: 16 << 10, Hold: release}, faulty.Rule{Op: faulty.Write, Off: 64 * 512, Len: 4096, Hold: release})
	defer func() { // also of a test that fails
		if release != nil {
			close(release)
		}
	}()
	late := pattern(16<<10, 1)
	sent := []*command{
		q.start(rw(nvme.OpWrite, 0, 32), nil, late),        // storage has not yet lent its memory
		q.start(rw(nvme.OpWrite, 64, 8), nil, late[:4096]), // storage writes it
		q.startSilent(rw(nvme.OpWrite, 128, 32), late),     // its data does not come
	}
	await.True(t, "storage holds two writes", func() bool { return dev.Held() == 2 })
	var s nvme.SQE
	s.Init(nvme.AdminSetFeatures, 0)
	s.SetCDW(10, uint32(nvme.FeatureKeepAlive))
	s.SetCDW(11, 1) // ms
	if _, err := h.do(s, nil, nil); err != nil {
		t.Fatal(err)
	}
	<-idle.done
	<-h.done
	<-q.done
	for i, c := range sent {
		if _, err := q.result(c); !errors.Is(err, errGone) {
			t.Errorf("write %d of a host that is gone: %v", i, err)
		}
	}
	await.True(t, "the controllers have ended", func() bool { return len(r.srv.Controllers()) == 0 })
	if dev.Held() != 2 {
		t.Error("the controllers were not ended before storage answered")
	}
	again := r.attach(hostNQN, 10, 1).io[0]
	now := pattern(4096, 2)
	if err := again.write(512, now); err != nil {
		t.Error(err)
	}
	behind := again.start(rw(nvme.OpWrite, 64, 8), nil, now)
	close(release)
	release = nil
	if e, err := again.result(behind); err != nil || !e.Status().OK() {
		t.Error(e, err)
	}
	if err := r.srv.RemoveSubsystem(context.Background(), subNQN); err != nil { // waits for every command
		t.Fatal(err)
	}
	for lba, want := range map[int64][]byte{0: make([]byte, 4096), 64: now, 128: make([]byte, 4096), 512: now} {
		got := make([]byte, 4096)
		if _, err := r.vol.ReadAt(got, lba*512); err != nil || !bytes.Equal(got, want) {
			t.Errorf("block %d has something else, %v", lba, err)
		}
	}
}
