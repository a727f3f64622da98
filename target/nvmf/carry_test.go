package nvmf_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"softiser/blockdev"
	"softiser/internal/nvme"
	"softiser/target"
	"softiser/target/nvmf"
)

// carried is what a server hands over, as the next process reads it.
func (r *rig) carried() (k target.Carried, left []string) {
	r.t.Helper()
	if err := r.srv.Freeze(r.t.Context()); err != nil {
		r.t.Fatal(err)
	}
	was, left, err := r.srv.Carry(func(string) bool { return false })
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(k.NVMe.Discard)
	var fds []int
	for fd, index := range was.Files() {
		*index = len(fds)
		fds = append(fds, *fd)
	}
	b, err := json.Marshal(&was)
	if err == nil {
		err = json.Unmarshal(b, &k)
	}
	if err != nil {
		r.t.Fatal(err)
	}
	again, err := json.Marshal(&k)
	if err != nil || !bytes.Equal(again, b) {
		r.t.Fatalf("%v: the JSON of what was read is\n%s\nnot\n%s", err, again, b)
	}
	for fd, index := range k.Files() {
		*fd = fds[*index]
	}
	for fd := range was.Files() {
		*fd = -1
	}
	return k, left
}

// hangUp closes a host's connections.
func (h *host) hangUp() {
	for _, q := range append(slices.Clone(h.io), h.queue) {
		q.close()
	}
}

// TestCarry: a controller goes on at another server with its numbers, its features and its
// requests for events; what waits in the sockets is served there.
func TestCarry(t *testing.T) {
	old, now := open(t, nil), open(t, nil)
	h := old.attach(hostNQN, 10, 2)
	var s nvme.SQE
	s.NewSetFeatures(nvme.FeatureAsyncEvents, 0, nvme.NoticeNamespace)
	if _, err := h.do(s, nil, nil); err != nil {
		t.Fatal(err)
	}
	s.NewSetFeatures(nvme.FeatureTemperature, 0, 77)
	if _, err := h.do(s, nil, nil); err != nil {
		t.Fatal(err)
	}
	s.Init(nvme.AdminAsyncEvent, 0)
	event := h.start(s, nil, nil)
	s.Init(0xC5, 0)
	if _, err := h.do(s, nil, nil); err == nil {
		t.Fatal("a command that there is not has succeeded")
	}
	id := old.srv.Status().Controllers[0].ID
	k, left := old.carried()
	if len(k.NVMe.Controllers) != 1 || len(left) != 0 || len(k.NVMe.Controllers[0].Errors) != 1 {
		t.Fatalf("%+v, %v", k.NVMe, left)
	}
	written := make(chan error, 1)
	data := pattern(96<<10, 5)
	go func() { written <- h.io[0].write(8, data) }() // nobody reads it before the next server does
	if err := now.srv.CheckCarried(&k, 3); err != nil {
		t.Fatal(err)
	}
	const last = 40 // controllers that have gone bore the numbers up to this one
	k.NVMe.Subsystems[0].LastCntlID = last
	k.NVMe.Subsystems = append(k.NVMe.Subsystems, nvmf.CarriedSubsystem{NQN: "nqn.removed"})
	if err := now.srv.Adopt(&k); err != nil {
		t.Fatal(err)
	}
	if err := <-written; err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(data))
	if _, err := now.vol.ReadAt(got, 8*512); err != nil || !bytes.Equal(got, data) {
		t.Fatalf("not what was written (%v)", err)
	}
	if err := h.io[1].write(1000, data); err != nil {
		t.Fatal(err)
	}
	if err := now.vol.(blockdev.Resizer).Resize(32 << 20); err != nil {
		t.Fatal(err)
	}
	if e, err := h.result(event); err != nil || nvme.Event(e.DW0()) != nvme.EventNamespaceChanged {
		t.Fatalf("%v, %v", e, err)
	}
	s.NewGetFeatures(nvme.FeatureTemperature, 0)
	if e, err := h.do(s, nil, nil); err != nil || e.DW0() != 77 {
		t.Fatalf("%v, %v", e, err)
	}
	if st := now.srv.Status().Controllers; len(st) != 1 || st[0].ID != id || st[0].Queues != 2 {
		t.Fatalf("%+v", st)
	}
	if next := now.attach(hostNQN, 10, 0); next.data.CntlID != last+1 {
		t.Errorf("the next controller is %d, the last one was %d", next.data.CntlID, last)
	}
	again := target.Carried{NVMe: nvmf.Carried{Controllers: k.NVMe.Controllers}}
	if err := now.srv.Adopt(&again); err == nil || !strings.Contains(err.Error(), "no descriptor") {
		t.Fatalf("a controller of which the descriptor has been taken: %v", err)
	}
	h.hangUp()
	old.srv.Thaw()
}

// TestCarryRDMA: a controller over RDMA goes on at another server, with a request for events
// that waits, and tells of events there.
func TestCarryRDMA(t *testing.T) {
	old, now := open(t, nil), open(t, nil)
	admin, io := old.attachRDMA(t, 0)
	var s nvme.SQE
	s.NewSetFeatures(nvme.FeatureAsyncEvents, 0, nvme.NoticeNamespace)
	if _, err := admin.do(s, nil); err != nil {
		t.Fatal(err)
	}
	s.Init(nvme.AdminAsyncEvent, 0)
	event := make(chan error, 1)
	go func() {
		e, err := admin.do(s, nil)
		if err == nil && nvme.Event(e.DW0()) != nvme.EventNamespaceChanged {
			err = fmt.Errorf("event %#x", e.DW0())
		}
		event <- err
	}()
	data := pattern(96<<10, 5)
	if _, err := io.do(rw(nvme.OpWrite, 8, 192), bytes.Clone(data)); err != nil {
		t.Fatal(err)
	}
	k, left := old.carried()
	if len(k.NVMe.Controllers) != 1 || len(left) != 0 || !k.NVMe.Controllers[0].OverRDMA() {
		t.Fatalf("%+v, %v", k.NVMe, left)
	}
	mixed := target.Carried{NVMe: nvmf.Carried{Controllers: slices.Clone(k.NVMe.Controllers)}}
	mixed.NVMe.Controllers[0].Queues = slices.Clone(k.NVMe.Controllers[0].Queues)
	mixed.NVMe.Controllers[0].Queues[1].RDMA = nil
	if now.srv.CheckCarried(&mixed, 2) == nil {
		t.Error("a controller of two kinds of queues: taken")
	}
	if err := now.srv.CheckCarried(&k, 2); err != nil {
		t.Fatal(err)
	}
	if err := now.srv.Adopt(&k); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		got := make([]byte, len(data))
		if _, err := io.do(rw(nvme.OpWrite, 8, 192), bytes.Clone(data)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.do(rw(nvme.OpRead, 8, 192), got); err != nil || !bytes.Equal(got, data) {
			t.Fatalf("not what was written (%v)", err)
		}
	}
	if err := now.vol.(blockdev.Resizer).Resize(32 << 20); err != nil {
		t.Fatal(err)
	}
	if err := <-event; err != nil {
		t.Fatal(err)
	}
	admin.tr.Terminate(nil)
	<-admin.over
	<-io.over
	old.srv.Thaw()
}

// TestRestWaits: a host that owes data keeps its controller from coming to rest; commands that
// have come meanwhile begin when it goes on.
func TestRestWaits(t *testing.T) {
	r := open(t, nil)
	h := r.attach(hostNQN, 10, 1)
	q := h.io[0]
	q.startSilent(rw(nvme.OpWrite, 0, 64), make([]byte, 64*512))
	<-q.asked
	ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
	defer cancel()
	over := make(chan error, 1)
	go func() { over <- r.srv.Freeze(ctx) }()
	read := make(chan error, 1)
	go func() { _, err := q.readBlocks(500, 512); read <- err }()
	if err := <-over; err == nil {
		t.Fatal("it is frozen, and a host owes data")
	}
	if err := <-read; err != nil {
		t.Fatal(err)
	}
	h.property(nvme.PropCSTS) // the admin queue goes on, too
	h.hangUp()
}

// TestCheckCarried: what no process of ours hands over is refused before anything is touched.
func TestCheckCarried(t *testing.T) {
	r := open(t, nil)
	h := r.attach(hostNQN, 10, 1)
	k, _ := r.carried()
	clone := func() (c target.Carried) {
		b, err := json.Marshal(&k)
		if err == nil {
			err = json.Unmarshal(b, &c)
		}
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	for name, spoil := range map[string]func(*nvmf.CarriedController){
		"host":       func(c *nvmf.CarriedController) { c.Host = "" },
		"long host":  func(c *nvmf.CarriedController) { c.Host = strings.Repeat("n", 300) },
		"identifier": func(c *nvmf.CarriedController) { c.ID = 0 },
		"keep alive": func(c *nvmf.CarriedController) { c.KeepAlive = -1 },
		"limit":      func(c *nvmf.CarriedController) { c.Limit = -1 },
		"no queue":   func(c *nvmf.CarriedController) { c.Queues = nil },
		"no admin":   func(c *nvmf.CarriedController) { c.Queues = c.Queues[1:] },
		"twice":      func(c *nvmf.CarriedController) { c.Queues = append(c.Queues, c.Queues[1]) },
		"file":       func(c *nvmf.CarriedController) { c.Queues[0].File = 2 },
		"negative":   func(c *nvmf.CarriedController) { c.Queues[1].File = -1 },
		"portal":     func(c *nvmf.CarriedController) { c.Queues[1].Portal = "[::1]:1" },
		"feature":    func(c *nvmf.CarriedController) { c.Features = map[nvme.FeatureID]uint32{nvme.FeatureHostID: 1} },
		"errors":     func(c *nvmf.CarriedController) { c.Errors = make([]nvme.ErrorEntry, 1) },
		"events":     func(c *nvmf.CarriedController) { c.Queues[0].Events = make([]uint16, 5) },
		"I/O events": func(c *nvmf.CarriedController) { c.Queues[1].Events = make([]uint16, 1) },
		"kind":       func(c *nvmf.CarriedController) { c.Events.Due = append(c.Events.Due, 99) },
		"notices":    func(c *nvmf.CarriedController) { c.Events.Notices = make([]nvme.ReservationLog, 65) },
		"changed":    func(c *nvmf.CarriedController) { c.Events.Changed = []uint32{2, 1} },
		"digests":    func(c *nvmf.CarriedController) { c.Queues[0].Stream.Digests = 4 },
		"align":      func(c *nvmf.CarriedController) { c.Queues[0].Stream.Align = 6 },
		"MAXH2CDATA": func(c *nvmf.CarriedController) { c.Queues[0].Stream.MaxH2CData = 1 << 31 },
		"capsule":    func(c *nvmf.CarriedController) { c.Queues[0].Stream.InCapsule = 1 },
		"entries":    func(c *nvmf.CarriedController) { c.Queues[0].Stream.Entries = 1 << 17 },
		"unread":     func(c *nvmf.CarriedController) { c.Queues[0].Stream.Unread = make([]byte, 1<<17) },
	} {
		c := clone()
		if err := r.srv.CheckCarried(&c, 2); err != nil {
			t.Fatal(err)
		}
		was := clone()
		spoil(&c.NVMe.Controllers[0])
		if reflect.DeepEqual(c, was) || r.srv.CheckCarried(&c, 2) == nil {
			t.Errorf("%s: taken", name)
		}
	}
	r.srv.Thaw()
	if err := h.io[0].write(1, pattern(4096, 1)); err != nil {
		t.Fatal(err)
	}
	h.hangUp()
}

// TestRestStays: what cannot be carried is told, with the reason, and goes on.
func TestRestStays(t *testing.T) {
	r := open(t, nil)
	found := r.attachTo(nvme.DiscoveryNQN, hostNQN, 11, 0)
	h := r.attach(hostNQN, 10, 1)
	k, left := r.carried()
	if len(k.NVMe.Controllers) != 1 || len(left) != 1 || !strings.Contains(left[0], "discovery") {
		t.Fatalf("%+v, %q", k.NVMe.Controllers, left)
	}
	again, left, err := r.srv.Carry(func(string) bool { return true })
	if err != nil || len(again.NVMe.Controllers) != 0 || len(left) != 2 || !strings.Contains(left[1], "opened anew") {
		t.Fatalf("%v, %q", err, left)
	}
	r.srv.Thaw()
	found.property(nvme.PropCSTS)
	if err := h.io[0].write(1, pattern(4096, 1)); err != nil {
		t.Fatal(err)
	}
	h.hangUp()
}

// FuzzCarried: whatever bytes come, nothing is taken for which there is no portal, and nothing panics.
func FuzzCarried(f *testing.F) {
	f.Add([]byte(`{"controllers":[{"host":"nqn.a","id":1,"queues":[{"file":0,"stream":{"align":4,"max_h2c_data":4096,"in_capsule":8192,"entries":2}}]}]}`))
	f.Add([]byte(`{"controllers":[{"host":"nqn.a","id":1,"queues":[{"file":0,"rdma":{"entries":2,"queue_pair":{"mpa_revision":2,"ord":1,"fpdu_size":1500}}}]}]}`))
	fe := &nvmf.Frontend{}
	f.Fuzz(func(t *testing.T, b []byte) {
		var k nvmf.Carried
		if json.Unmarshal(b, &k) == nil && fe.Handover().Check(&k, 3) == nil && len(k.Controllers) > 0 {
			t.Error("there is no portal")
		}
	})
}
