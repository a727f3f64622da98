package volume

import (
	"context"
	"sync"
	"testing"
	"time"

	"softiser/blockdev"
	"softiser/blockdev/mem"
	"softiser/internal/fsm"
	"softiser/internal/leaktest"
)

func TestMain(m *testing.M) {
	fsm.OnIllegal = func(err error) { panic(err) }
	leaktest.Main(m)
}

// testFace is a place whose events are kept.
type testFace struct {
	mu     sync.Mutex
	events []EventKind
	left   chan struct{}
}

func (f *testFace) Notify(e Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.events = append(f.events, e.Kind)
}

func (f *testFace) Left() { close(f.left) }

// bench is a volume at one place.
type bench struct {
	t     testing.TB
	reg   *Registry
	v     *Volume
	place Place
	face  *testFace
}

func newDevice(t testing.TB, name string) blockdev.Device {
	t.Helper()
	d, err := mem.Open(mem.Config{Size: 1 << 20, Name: name})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

// serve maps cfg.Device; the place goes with the test.
func serve(t testing.TB, reg *Registry, cfg Config, name string) *bench {
	t.Helper()
	b := &bench{t: t, reg: reg, face: &testFace{left: make(chan struct{})}}
	var err error
	if b.v, err = reg.Map(cfg, &b.place, PlaceConfig{Name: name, Seed: name, Face: b.face}); err != nil {
		t.Fatal(err)
	}
	b.place.Start()
	t.Cleanup(b.close)
	return b
}

func (b *bench) close() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := b.place.Drain(ctx); err != nil {
		b.t.Error(err)
	}
	if n := b.v.BuffersOut(); n != 0 {
		b.t.Errorf("%d buffers are still lent", n)
	}
}

// req is a request that notes why it goes on, and ends with the first cause unless more
// is set.
type req struct {
	op    Op
	v     *Volume
	more  func(*req)
	free  func() // when it has ended by a step; nil: nothing
	steps chan Cause
}

func (r *req) Step(why Cause) {
	if r.more != nil && why == Proceed {
		more := r.more
		r.more = nil
		more(r)
		return
	}
	_, waits := r.v.Leave(&r.op)
	waits.Done()
	if r.free != nil {
		r.free()
	}
	r.steps <- why
}

func (r *req) Via() Port   { return r }
func (r *req) Cancel(Port) {}
func (r *req) Push()       {}

func (r *req) Describe(c *TracedCommand) { c.Command = "request" }

// start admits a request for blocks; it reports whether it runs.
func (b *bench) start(r *req, c *Client, o Order, lo, hi uint64, kind Hold) (*req, bool) {
	if r == nil {
		r = &req{steps: make(chan Cause, 4)}
	}
	r.v = b.v
	r.op.Init(r)
	r.op.Client, r.op.Order = c, o
	r.op.Cover(lo, hi, kind)
	return r, b.v.Admit(&r.op)
}

// end ends a request that runs.
func (r *req) end() {
	_, waits := r.v.Leave(&r.op)
	waits.Done()
}

// over reports whether the request has ended.
func (r *req) over() bool { return len(r.steps) > 0 }
