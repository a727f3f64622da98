package nvmf_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"softiser/initiator/nvmf"
	"softiser/internal/nvme"
	"softiser/target"
	targetnvmf "softiser/target/nvmf"
)

const ownNQN = "nqn.2026-11.softiser:discovery.node1"

// entries reads the discovery log.
func (h *host) entries() (l []nvme.DiscoveryEntry, generation uint64) {
	h.t.Helper()
	generation, n, err := nvme.ParseDiscoveryHeader(h.log(nvme.LogDiscovery, nvme.DiscoveryEntryLen))
	if err != nil {
		h.t.Fatal(err)
	}
	b := h.log(nvme.LogDiscovery, nvme.DiscoveryEntryLen*(n+1))
	for i := range n {
		e, err := nvme.ParseDiscoveryEntry(b[nvme.DiscoveryEntryLen*(i+1):])
		if err != nil {
			h.t.Fatal(err)
		}
		l = append(l, e)
	}
	return l, generation
}

// told is a discovery log in short: what each entry over TCP leads to, and where.
func told(l []nvme.DiscoveryEntry) string {
	var all []string
	for _, e := range l {
		if e.Transport == nvme.TransportTCP {
			all = append(all, fmt.Sprintf("%d %s %s:%s %x", e.Type, e.Subsystem[strings.LastIndexByte(e.Subsystem, ':')+1:], e.Address, e.Service, e.Flags))
		}
	}
	return strings.Join(all, "\n")
}

func remote(s string) targetnvmf.Remote {
	return targetnvmf.Remote{Address: netip.MustParseAddrPort(s), TCP: true, RDMA: true}
}

// A discovery service answers to its own name as to everybody's; what it calls itself is its
// own one.
func TestUniqueDiscoveryName(t *testing.T) {
	r := open(t, func(c *target.Config, _ *targetnvmf.SubsystemConfig) { c.DiscoveryNQN = ownNQN })
	var ids []uint16
	for i, name := range []string{ownNQN, nvme.DiscoveryNQN} {
		h := r.attachTo(name, hostNQN, byte(i), 0)
		d, err := nvme.ParseController(h.identify(nvme.CNSController, 0))
		if err != nil || d.Subsystem != ownNQN || d.Type != nvme.TypeDiscovery || d.LPA != nvme.LogExtended {
			t.Errorf("%s: Identify tells %q, type %d, LPA %02xh, %v", name, d.Subsystem, d.Type, d.LPA, err)
		}
		if l, _ := h.entries(); len(l) != 4 || l[0].Type != nvme.SubsystemDiscovery || l[0].Subsystem != ownNQN || l[2].Subsystem != subNQN {
			t.Errorf("%s: %+v", name, l)
		}
		ids = append(ids, h.data.CntlID)
	}
	if ids[0] == ids[1] {
		t.Error("Linux takes both names for one subsystem; two of its controllers have one identifier")
	}
	// It has no I/O queues under either name.
	for _, name := range []string{ownNQN, nvme.DiscoveryNQN} {
		d := admin(name)
		d.CntlID = ids[0]
		if _, err := dial(t, r.addr).connect(1, d, 0); !errors.Is(err, nvme.ConnectInvalidParameters|nvme.DoNotRetry) {
			t.Errorf("an I/O queue of %s: %v", name, err)
		}
	}
	log, err := nvmf.Discover(t.Context(), nvmf.Config{Address: r.addr, Subsystem: ownNQN, HostNQN: hostNQN})
	if err != nil || len(log.Records) != 4 {
		t.Errorf("our own host: %+v, %v", log, err)
	}
	for _, nqn := range []string{ownNQN, nvme.DiscoveryNQN} {
		if err := r.srv.AddSubsystem(targetnvmf.SubsystemConfig{NQN: nqn}); err == nil {
			t.Errorf("a subsystem is called %s", nqn)
		}
	}
}

// A host whose connection to the discovery service stays is told of every change, once until
// it has read the log: subsystems and who may use them, other discovery services, portals of
// other nodes.
func TestPersistentDiscovery(t *testing.T) {
	r := open(t, func(c *target.Config, s *targetnvmf.SubsystemConfig) {
		s.Hosts = []targetnvmf.HostRule{{NQN: hostNQN}}
		c.Referrals = []targetnvmf.Remote{remote("192.0.2.2:8009")}
	})
	h := r.attachTo(nvme.DiscoveryNQN, hostNQN, 1, 0)
	guest := r.attachTo(nvme.DiscoveryNQN, "nqn.guest", 2, 0)
	var s nvme.SQE
	s.NewSetFeatures(nvme.FeatureAsyncEvents, 0, nvme.NoticeDiscovery)
	if _, err := h.do(s, nil, nil); err != nil {
		t.Fatal(err)
	}
	self := "3 " + nvme.DiscoveryNQN + " " + r.addr + " 3\n"
	other := "1 " + nvme.DiscoveryNQN + " 192.0.2.2:8009 0\n"
	disk := "2 disk0 " + r.addr + " 0"
	l, generation := h.entries()
	if got := told(l); got != self+other+disk {
		t.Errorf("the log is\n%s", got)
	}
	if l, _ := guest.entries(); told(l)+"\n" != self+other {
		t.Errorf("a guest is told\n%s", told(l))
	}
	for _, step := range []struct {
		name   string
		change func() error
		want   string
	}{
		{"another referral", func() error {
			return r.srv.SetReferrals([]targetnvmf.Remote{{Address: netip.MustParseAddrPort("[2001:db8::3]:8009"), TCP: true, NQN: "nqn.x:node3"}})
		}, self + "1 node3 2001:db8::3:8009 0\n" + disk},
		{"no referral", func() error { return r.srv.SetReferrals(nil) }, self + disk},
		{"another node", func() error { return r.srv.SetRemote(subNQN, []targetnvmf.Remote{remote("192.0.2.2:4420")}) }, self + disk + "\n2 disk0 192.0.2.2:4420 0"},
		{"the host's right", func() error { return r.srv.SetHosts(subNQN, []targetnvmf.HostRule{{NQN: "nqn.guest"}}, 0) }, strings.TrimSpace(self)},
		{"a subsystem", func() error { return r.srv.AddSubsystem(targetnvmf.SubsystemConfig{NQN: "nqn.x:disk1"}) }, self + "2 disk1 " + r.addr + " 0"},
		{"no subsystem", func() error { return r.srv.RemoveSubsystem(t.Context(), "nqn.x:disk1") }, strings.TrimSpace(self)},
	} {
		var s nvme.SQE
		s.Init(nvme.AdminAsyncEvent, 0)
		event := h.start(s, nil, nil)
		if err := step.change(); err != nil {
			t.Fatal(step.name, err)
		}
		if e, err := h.result(event); err != nil || nvme.Event(e.DW0()) != nvme.EventDiscoveryChanged {
			t.Fatalf("%s: event %+v, %v", step.name, e, err)
		}
		l, now := h.entries()
		if got := told(l); got != step.want || now == generation {
			t.Errorf("%s: generation %d after %d, the log is\n%s", step.name, now, generation, got)
		}
		generation = now
	}
	if l := r.srv.Controllers(); len(l) != 2 || l[0].KeepAlive != time.Minute {
		t.Errorf("%+v", l)
	}
}

// What other nodes' portals are is said by transport, with the TLS that the subsystem wants,
// and under port identifiers of their own.
func TestRemotePortals(t *testing.T) {
	r := open(t, func(_ *target.Config, s *targetnvmf.SubsystemConfig) {
		s.Remote = []targetnvmf.Remote{remote("192.0.2.2:4420"), {Address: netip.MustParseAddrPort("192.0.2.3:4420"), RDMA: true}, {Address: netip.MustParseAddrPort("192.0.2.4:3260"), RDMA: true, RoCE: true}}
	})
	of := func() (all []string) {
		l, _ := r.attachTo(nvme.DiscoveryNQN, hostNQN, 1, 0).entries()
		for _, e := range l {
			if e.Type == nvme.SubsystemNVM {
				told := fmt.Sprintf("%d %s %s treq %d sectype %d", e.PortID, e.Transport, e.Address, e.Requirements, e.Security)
				if e.Transport == nvme.TransportRDMA {
					told += " " + e.Provider.String()
				}
				all = append(all, told)
			}
		}
		return all
	}
	want := []string{
		"1 tcp 127.0.0.1 treq 4 sectype 0", "1 rdma 127.0.0.1 treq 4 sectype 0 iwarp",
		"2 tcp 192.0.2.2 treq 4 sectype 0", "2 rdma 192.0.2.2 treq 4 sectype 0 not specified", "3 rdma 192.0.2.3 treq 4 sectype 0 not specified",
		"4 rdma 192.0.2.4 treq 4 sectype 0 roce-v2",
	}
	if l := of(); !slices.Equal(l, want) {
		t.Errorf("%q", l)
	}
	if err := r.srv.SetHosts(subNQN, nil, targetnvmf.SecureRequired); err != nil {
		t.Fatal(err)
	}
	want = []string{"1 tcp 127.0.0.1 treq 5 sectype 2", "2 tcp 192.0.2.2 treq 5 sectype 2"}
	if l := of(); !slices.Equal(l, want) {
		t.Errorf("with TLS: %q", l)
	}
	for _, bad := range []targetnvmf.Remote{{}, {Address: netip.MustParseAddrPort("0.0.0.0:4420"), TCP: true}, {Address: netip.MustParseAddrPort("192.0.2.2:0"), TCP: true}, {Address: netip.MustParseAddrPort("192.0.2.2:1")}, {Address: netip.MustParseAddrPort("192.0.2.2:1"), TCP: true, NQN: "x"}, {Address: netip.MustParseAddrPort("192.0.2.2:1"), TCP: true, RoCE: true}} {
		l := []targetnvmf.Remote{bad}
		if r.srv.SetReferrals(l) == nil || r.srv.SetRemote(subNQN, l) == nil || r.srv.AddSubsystem(targetnvmf.SubsystemConfig{NQN: "nqn.y", Remote: l}) == nil {
			t.Errorf("%+v is taken for a portal", bad)
		}
		if _, err := target.New(target.Config{Portals: []target.Portal{{Listen: "127.0.0.1:0"}}, Referrals: l}); err == nil {
			t.Errorf("%+v is taken for a referral", bad)
		}
	}
	if r.srv.SetRemote("nqn.nobody", nil) == nil {
		t.Error("a subsystem that is not there has got portals")
	}
	if _, err := target.New(target.Config{Portals: []target.Portal{{Listen: "127.0.0.1:0"}}, DiscoveryNQN: "x"}); err == nil {
		t.Error("a discovery service is called x")
	}
}

// That all portals tell the same is claimed where it is so.
func TestDuplicateReturned(t *testing.T) {
	for _, tt := range []struct {
		portals []target.Portal
		same    bool
	}{
		{[]target.Portal{{Listen: "0.0.0.0:0"}}, true},
		{[]target.Portal{{Listen: "127.0.0.1:0"}, {Listen: "127.0.0.2:0"}}, true},
		{[]target.Portal{{Listen: "127.0.0.1:0"}, {Listen: "0.0.0.0:0"}}, false},
		{[]target.Portal{{Listen: "0.0.0.0:0"}, {Listen: "0.0.0.0:0"}}, false},
		{[]target.Portal{{Listen: "127.0.0.1:0"}, {Listen: "127.0.0.1:0", Advertise: "192.0.2.1:8009"}}, false},
		{[]target.Portal{{Listen: "127.0.0.1:0", Advertise: "192.0.2.1:8009"}, {Listen: "0.0.0.0:0", Advertise: "192.0.2.2:8009"}}, true},
	} {
		r := open(t, func(c *target.Config, _ *targetnvmf.SubsystemConfig) { c.Portals = tt.portals })
		_, port, err := net.SplitHostPort(r.addr)
		if err != nil {
			t.Fatal(err)
		}
		r.addr = net.JoinHostPort("127.0.0.1", port)
		l, _ := r.attachTo(nvme.DiscoveryNQN, hostNQN, 1, 0).entries()
		for _, e := range l {
			want := uint16(0)
			if e.Type == nvme.SubsystemDiscovery {
				want = nvme.EntryPersistent
				if tt.same {
					want |= nvme.EntryDuplicate
				}
			}
			if e.Flags != want {
				t.Errorf("%v: flags %x, want %x of %+v", tt.portals, e.Flags, want, e)
			}
		}
	}
}
