package nvmf_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"softiser/internal/await"
	"softiser/internal/nvme"
	"softiser/target"
	"softiser/target/nvmf"
	"softiser/target/volume"
)

// namespaces lists those that the host sees.
func (h *host) namespaces() []uint32 {
	l, err := nvme.ParseNSIDs(h.identify(nvme.CNSActiveNamespaces, 0))
	if err != nil {
		h.t.Fatal(err)
	}
	return l
}

// changed waits for the event that namespaces have changed, and returns which.
func (h *host) changed(event *command) byte {
	h.t.Helper()
	e, err := h.result(event)
	if err != nil || nvme.Event(e.DW0()) != nvme.EventNamespaceChanged {
		h.t.Fatalf("%v, %v", e, err)
	}
	return h.log(nvme.LogChangedNamespaces, 4096)[0]
}

// Namespaces come and go while hosts are there, who are told and see it.
func TestNamespacesComeAndGo(t *testing.T) {
	r := open(t, nil)
	h := r.attach(hostNQN, 10, 1)
	var s nvme.SQE
	s.NewSetFeatures(nvme.FeatureAsyncEvents, 0, nvme.NoticeNamespace)
	if _, err := h.do(s, nil, nil); err != nil {
		t.Fatal(err)
	}
	s.Init(nvme.AdminAsyncEvent, 0)
	event := h.start(s, nil, nil)
	add := func(id uint32) error {
		return r.srv.AddNamespace(subNQN, nvmf.NamespaceConfig{NSID: id, Name: "more", Volume: newMem(t, 1<<20)})
	}
	if err := add(3); err != nil {
		t.Fatal(err)
	}
	if id := h.changed(event); id != 3 {
		t.Errorf("namespace %d has changed", id)
	}
	if l := h.namespaces(); len(l) != 2 || l[1] != 3 {
		t.Errorf("the host sees %v", l)
	}
	w := rw(nvme.OpWrite, 0, 1)
	w.SetNSID(3)
	if _, err := h.io[0].do(w, nil, pattern(512, 7)); err != nil {
		t.Error(err)
	}
	if add(3) == nil || add(0) == nil || add(4000) == nil || r.srv.AddNamespace("nqn.none", nvmf.NamespaceConfig{NSID: 1}) == nil {
		t.Error("a namespace that there cannot be was added")
	}
	event = h.start(s, nil, nil)
	if err := r.srv.RemoveNamespace(t.Context(), subNQN, 3); err != nil {
		t.Fatal(err)
	}
	if id := h.changed(event); id != 3 {
		t.Errorf("namespace %d has changed", id)
	}
	if l := h.namespaces(); len(l) != 1 || l[0] != 1 {
		t.Errorf("the host sees %v", l)
	}
	if e, err := h.io[0].do(w, nil, pattern(512, 7)); err == nil || e == nil || e.Status().Code() != nvme.InvalidNamespace {
		t.Errorf("a write to what is gone: %v, %v", e, err)
	}
	if r.srv.RemoveNamespace(t.Context(), subNQN, 3) == nil {
		t.Error("it was removed twice")
	}
}

// A namespace whose commands do not end is gone for hosts; waiting can be taken up again,
// and what its host had under way ends with the host.
func TestRemoveNamespaceUnderLoad(t *testing.T) {
	r := open(t, slow)
	h := r.attach(hostNQN, 10, 1)
	for range 2 {
		if err := h.io[0].write(0, pattern(512, 1)); err != nil {
			t.Fatal(err)
		}
	}
	held := h.io[0].start(rw(nvme.OpWrite, 0, 1), nil, pattern(512, 2))
	await.True(t, "the write waits", func() bool { return r.srv.VolumeStatus(r.vol).Stats.Waiting == 1 })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.srv.RemoveNamespace(ctx, subNQN, 1); !errors.Is(err, target.ErrVolumesHeld) {
		t.Fatal(err)
	}
	if l := h.namespaces(); len(l) != 0 {
		t.Errorf("the host sees %v", l)
	}
	if err := r.srv.AddNamespace(subNQN, nvmf.NamespaceConfig{NSID: 1, Volume: newMem(t, 1<<20)}); !errors.Is(err, target.ErrVolumesHeld) {
		t.Errorf("another one under its identifier: %v", err)
	}
	if st := r.srv.Status().Subsystems; len(st) != 1 || len(st[0].Namespaces) != 1 || !st[0].Namespaces[0].Leaving {
		t.Errorf("status: %+v", st)
	}
	h.nc.Close()
	// Its end and that of its namespace race.
	if e, err := h.io[0].result(held); !errors.Is(err, errGone) && (err != nil || e.Status() != nvme.AbortRequested && e.Status().Code() != nvme.InvalidNamespace) {
		t.Errorf("%v, %v", e, err)
	}
	if err := r.srv.RemoveNamespace(t.Context(), subNQN, 1); err != nil { // waits for the write
		t.Fatal(err)
	}
	got := make([]byte, 512)
	if _, err := r.vol.ReadAt(got, 0); err != nil || string(got) != string(pattern(512, 1)) {
		t.Errorf("the write of a host that is gone took effect: %v", err)
	}
}

// Status counts what hosts have done, after they have gone as well.
func TestTrafficIsCounted(t *testing.T) {
	r := open(t, nil)
	h := r.attach(hostNQN, 10, 2)
	for i, q := range h.io {
		if err := q.write(uint64(8*i), pattern(4096, 1)); err != nil {
			t.Fatal(err)
		}
		if _, err := q.readBlocks(0, 1024); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := h.io[0].do(rw(nvme.OpRead, 1<<40, 1), make([]byte, 512), nil); err == nil {
		t.Fatal("a read behind the end")
	}
	st := r.srv.Status()
	c := st.Controllers[0]
	want := nvmf.Traffic{Commands: c.Commands, Failed: 1, Reads: 2, Writes: 2, ReadBytes: 2048, WriteBytes: 8192}
	if c.Traffic != want || c.Commands < 5 || c.Queues != 2 || c.Transport != "NVMe/TCP" || c.Host != hostNQN || c.Subsystem != subNQN {
		t.Errorf("%+v", c)
	}
	if x := st.NVMe; len(x) != 1 || x[0].Connections != 3 || x[0].Failed != 1 || x[0].WriteBytes != 8192 {
		t.Errorf("%+v", x)
	}
	h.nc.Close()
	for _, q := range h.io {
		<-q.done
	}
	await.True(t, "nobody is connected", func() bool { x := r.srv.Status().NVMe; return len(x) == 1 && x[0].Connections == 0 })
	if x := r.srv.Status().NVMe[0]; x.Failed != 1 || x.WriteBytes != 8192 || x.Reads != 2 {
		t.Errorf("afterwards: %+v", x)
	}
}

// What an administrator asks for and cannot have is refused by name, and leaves everything as it was.
func TestManagementRefused(t *testing.T) {
	r := open(t, nil)
	more := nvmf.NamespaceConfig{NSID: 1, Name: "more", Volume: newMem(t, 1<<20)}
	beyond := more
	beyond.NSID = 1025
	for _, c := range []struct {
		err  error
		want string
	}{
		{r.srv.AddNamespace("nqn.other", more), "there is no subsystem nqn.other"},
		{r.srv.AddNamespace(subNQN, more), "namespace 1: the identifier is taken"},
		{r.srv.AddNamespace(subNQN, beyond), "namespace 1025: the identifier is not between 1 and 1024"},
		{r.srv.VacantNamespace("nqn.other", 2), "there is no subsystem nqn.other"},
		{r.srv.VacantNamespace(subNQN, 1), "namespace 1: the identifier is taken"},
		{r.srv.RemoveNamespace(t.Context(), "nqn.other", 1), "there is no subsystem nqn.other"},
		{r.srv.RemoveNamespace(t.Context(), subNQN, 2), subNQN + " has no namespace 2"},
		{r.srv.RemoveSubsystem(t.Context(), "nqn.other"), "there is no subsystem nqn.other"},
		{r.srv.SetNamespaceAccess("nqn.other", 1, 1, volume.PathInaccessible), "there is no subsystem nqn.other"},
		{r.srv.SetNamespaceAccess(subNQN, 2, 1, volume.PathInaccessible), subNQN + " has no namespace 2"},
		{r.srv.SetNamespaceAccess(subNQN, 1, 9, volume.PathInaccessible), "there is no portal of group 9"},
		{r.srv.AddSubsystem(nvmf.SubsystemConfig{NQN: subNQN}), subNQN + " is there already"},
	} {
		if c.err == nil || !strings.Contains(c.err.Error(), c.want) {
			t.Errorf("%v; want %q", c.err, c.want)
		}
	}
	if err := r.srv.VacantNamespace(subNQN, 2); err != nil {
		t.Error(err)
	}
	if l := r.attach(hostNQN, 10, 0).namespaces(); len(l) != 1 || l[0] != 1 {
		t.Errorf("hosts see %v", l)
	}
}
