package nvmf_test

import (
	"errors"
	"testing"

	"softiser/internal/nvme"
	"softiser/target"
	"softiser/target/nvmf"
	"softiser/target/scsi"
	"softiser/target/volume"
)

// twoPortals serves by two portals, whose addresses are returned by their group.
func twoPortals(t *testing.T) (*rig, [3]string) {
	t.Helper()
	r := open(t, func(c *target.Config, _ *nvmf.SubsystemConfig) {
		c.Portals = []target.Portal{{Listen: "127.0.0.1:0", Group: 1}, {Listen: "127.0.0.1:0", Group: 2}}
	})
	a := r.srv.Addrs()
	return r, [3]string{1: a[0], 2: a[1]}
}

func (h *host) ana(t *testing.T) (uint64, nvme.ANAGroup) {
	t.Helper()
	changes, groups, err := nvme.ParseANA(h.log(nvme.LogANA, 1024))
	if err != nil || len(groups) != 1 || groups[0].ID != 1 || len(groups[0].Namespaces) != 1 {
		t.Fatalf("%+v, %v", groups, err)
	}
	return changes, groups[0]
}

// A state holds for the controllers of its portal group alone: they are told, find it in
// the log, and their commands end with it until it changes again.
func TestANA(t *testing.T) {
	r, addr := twoPortals(t)
	hosts := [3]*host{}
	for g := 1; g <= 2; g++ {
		r.addr = addr[g]
		hosts[g] = r.attach(hostNQN, 10, 1)
		var s nvme.SQE
		s.NewSetFeatures(nvme.FeatureAsyncEvents, 0, nvme.NoticeANA)
		if _, err := hosts[g].do(s, nil, nil); err != nil {
			t.Fatal(err)
		}
	}
	a, b := hosts[1], hosts[2]
	c, err := nvme.ParseController(a.identify(nvme.CNSController, 0))
	if err != nil || c.CMIC&nvme.ReportsANA == 0 || c.OAES&nvme.NoticeANA == 0 || c.ANACAP != 0x5F || c.ANATT == 0 || c.ANAGroups != c.ANAGRPMax || c.MaxNamespaces == 0 {
		t.Errorf("%+v, %v", c, err)
	}
	if n, err := nvme.ParseNamespace(a.identify(nvme.CNSNamespace, 1)); err != nil || n.ANAGroup != 1 || n.Use == 0 {
		t.Errorf("%+v, %v", n, err)
	}
	before, g := a.ana(t)
	ofGroup := g.Changes
	if g.State != nvme.ANAStateOptimized {
		t.Errorf("at first %v", g.State)
	}
	for _, tt := range []struct {
		to     scsi.AccessState
		state  nvme.ANAState
		status nvme.Status
	}{
		{scsi.ActiveNonOptimized, nvme.ANAStateNonOptimized, nvme.Success},
		{scsi.Standby, nvme.ANAStateInaccessible, nvme.ANAInaccessible},
		{scsi.Transitioning, nvme.ANAStateChange, nvme.ANATransition},
		{scsi.Offline, nvme.ANAStatePersistentLoss, nvme.ANAPersistentLoss},
		{scsi.ActiveOptimized, nvme.ANAStateOptimized, nvme.Success},
	} {
		if err := r.srv.SetAccessState(subNQN, 1, 1, tt.to); err != nil {
			t.Fatal(err)
		}
		if e := a.event(); e != nvme.EventANAChanged {
			t.Errorf("%v: %v", tt.state, e)
		}
		now, g := a.ana(t)
		if g.State != tt.state || now <= before || g.Changes <= ofGroup {
			t.Errorf("log: %+v, change %d after %d, of the group after %d; want %v", g, now, before, ofGroup, tt.state)
		}
		before, ofGroup = now, g.Changes
		var mask, format nvme.SQE
		mask.NewGetFeatures(nvme.FeatureResvMask, 1)
		format.NewFormat(1, 0)
		_, err1 := a.io[0].readBlocks(0, 512)
		_, err2 := a.do(mask, nil, nil)
		_, err3 := a.do(format, nil, nil)
		for i, err := range []error{a.io[0].write(0, pattern(512, 1)), err1, err2, err3} {
			if tt.status == nvme.Success && err != nil || tt.status != nvme.Success && !errors.Is(err, tt.status) {
				t.Errorf("%v: command %d: %v", tt.state, i, err)
			}
		}
		n, err := nvme.ParseNamespace(a.identify(nvme.CNSNamespace, 1))
		if err != nil || (n.Use == 0) != (tt.status != nvme.Success) || n.Size == 0 {
			t.Errorf("%v: %+v, %v", tt.state, n, err)
		}
		if err := b.io[0].write(0, pattern(512, 1)); err != nil {
			t.Errorf("%v: through the other group: %v", tt.state, err)
		}
	}
	if _, g := b.ana(t); g.State != nvme.ANAStateOptimized {
		t.Errorf("the other group: %v", g.State)
	}
	// nvme-cli reads what Identify says that there might be, piece by piece.
	const whole = 16 + 1024*32 + 1024*4
	for off := uint64(0); off < whole; off += 4096 {
		n := min(4096, whole-uint32(off))
		if _, err := a.do(sqe(func(s *nvme.SQE) { s.NewGetLogPage(nvme.LogANA, nvme.NSIDAll, off, n) }), make([]byte, n), nil); err != nil {
			t.Fatalf("the log at %d: %v", off, err)
		}
	}
	q := sqe(func(s *nvme.SQE) { s.NewGetLogPage(nvme.LogANA, nvme.NSIDAll, 0, 64).SetSpecific(1) })
	p := make([]byte, 64)
	if _, err := a.do(q, p, nil); err != nil {
		t.Fatal(err)
	}
	if _, groups, err := nvme.ParseANA(p); err != nil || len(groups) != 1 || len(groups[0].Namespaces) != 0 {
		t.Errorf("groups only: %+v, %v", groups, err)
	}
	for _, bad := range []error{r.srv.SetAccessState("nqn.none", 1, 1, 0), r.srv.SetAccessState(subNQN, 2, 1, 0), r.srv.SetAccessState(subNQN, 1, 9, 0)} {
		if bad == nil {
			t.Error("a state of what is not there is set")
		}
	}
}

// The state of a LUN is that of the namespace of the same volume.
func TestANAWithALUA(t *testing.T) {
	r, addr := twoPortals(t)
	r.addr = addr[1]
	r.lun()
	h := r.attach(hostNQN, 10, 1)
	if err := r.srv.SetAccessState(sharedIQN, 0, 1, scsi.Standby); err != nil {
		t.Fatal(err)
	}
	if _, g := h.ana(t); g.State != nvme.ANAStateInaccessible {
		t.Errorf("the LUN is in standby, the namespace %v", g.State)
	}
	if err := h.io[0].write(0, pattern(512, 1)); !errors.Is(err, nvme.ANAInaccessible) {
		t.Error(err)
	}
	if err := r.srv.SetAccessState(sharedIQN, 0, 1, scsi.ActiveOptimized); err != nil {
		t.Fatal(err)
	}
	if err := h.io[0].write(0, pattern(512, 1)); err != nil {
		t.Error(err)
	}
}

// A namespace that comes or goes is another group, which hosts are told of first.
func TestANAGroupsComeAndGo(t *testing.T) {
	r := open(t, nil)
	h := r.attach(hostNQN, 10, 0)
	var s nvme.SQE
	s.NewSetFeatures(nvme.FeatureAsyncEvents, 0, nvme.NoticeANA|nvme.NoticeNamespace)
	if _, err := h.do(s, nil, nil); err != nil {
		t.Fatal(err)
	}
	last, _, err := nvme.ParseANA(h.log(nvme.LogANA, 1024))
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		change func() error
		groups int
	}{
		{func() error {
			return r.srv.AddNamespace(subNQN, nvmf.NamespaceConfig{NSID: 2, Name: "more", Volume: newMem(t, 1<<20)})
		}, 2},
		{func() error { return r.srv.RemoveNamespace(t.Context(), subNQN, 2) }, 1},
	} {
		if err := tt.change(); err != nil {
			t.Fatal(err)
		}
		first, second := h.event(), h.event()
		if first|second != nvme.EventANAChanged|nvme.EventNamespaceChanged || first == second {
			t.Errorf("%v, then %v", first, second)
		}
		now, groups, err := nvme.ParseANA(h.log(nvme.LogANA, 1024))
		if err != nil || len(groups) != tt.groups || now <= last {
			t.Errorf("%d groups, change %d after %d, %v; want %d groups", len(groups), now, last, err, tt.groups)
		}
		last = now
		h.log(nvme.LogChangedNamespaces, 4096)
	}
}

// A namespace begins in the states that it is given, through each portal group its own; one
// that is given none leaves its volume as it is.
func TestANAAtStart(t *testing.T) {
	r := open(t, func(c *target.Config, s *nvmf.SubsystemConfig) {
		c.Portals = []target.Portal{{Listen: "127.0.0.1:0", Group: 1}, {Listen: "127.0.0.1:0", Group: 2}}
		s.Namespaces[0].Access = map[uint16]volume.PathState{0: volume.PathInaccessible, 2: volume.PathNonOptimized}
	})
	states := func(want ...nvme.ANAState) {
		t.Helper()
		for i, a := range r.srv.Addrs() {
			r.addr = a
			h := r.attach(hostNQN, 10, 1)
			if _, g := h.ana(t); g.State != want[i] {
				t.Errorf("group %d: %v, want %v", i+1, g.State, want[i])
			}
			_, err := h.io[0].readBlocks(0, 512)
			if st := want[i].Status(); st == nvme.Success && err != nil || st != nvme.Success && !errors.Is(err, st) {
				t.Errorf("group %d: a read ends with %v", i+1, err)
			}
		}
	}
	states(nvme.ANAStateInaccessible, nvme.ANAStateNonOptimized)
	if a := r.srv.Status().Subsystems[0].Namespaces[0].Access; a[1] != volume.PathInaccessible || a[2] != volume.PathNonOptimized {
		t.Errorf("status: %v", a)
	}
	if err := r.srv.AddSubsystem(nvmf.SubsystemConfig{NQN: "nqn.x:other", Namespaces: []nvmf.NamespaceConfig{{NSID: 1, Volume: r.vol}}}); err != nil {
		t.Fatal(err)
	}
	states(nvme.ANAStateInaccessible, nvme.ANAStateNonOptimized)
	if err := r.srv.SetNamespaceAccess("nqn.x:other", 1, 1, volume.PathLost); err != nil {
		t.Fatal(err)
	}
	states(nvme.ANAStatePersistentLoss, nvme.ANAStateNonOptimized)
}
