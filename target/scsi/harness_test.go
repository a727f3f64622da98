package scsi

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"softiser/internal/await"
	"softiser/internal/leaktest"
	"softiser/internal/spc"

	"softiser/blockdev"
	"softiser/blockdev/mem"
	"softiser/target/volume"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// call is one command of a test with the initiator's buffers.
type call struct {
	Task
	in      []byte
	out     []byte
	hold    bool // the peer does not send Data-Out until release
	waiting func()
	failOut error
	done    chan struct{}
	ended   int
}

// testPort is the session layer of tests: it moves data between the task's
// segments and the call's buffers.
type testPort struct {
	mu    sync.Mutex
	calls map[*Task]*call
	push  int
}

func (p *testPort) find(t *Task) *call {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.calls[t]
}

func (p *testPort) DataIn(t *Task, off uint32, segs [][]byte) error {
	c := p.find(t)
	for _, s := range segs {
		if int(off)+len(s) > len(c.in) {
			return fmt.Errorf("data-in beyond the initiator's buffer: %d+%d of %d", off, len(s), len(c.in))
		}
		off += uint32(copy(c.in[off:], s))
	}
	return nil
}

func (p *testPort) DataOut(t *Task, off uint32, segs [][]byte) error {
	c := p.find(t)
	n := 0
	for _, s := range segs {
		n += len(s)
	}
	if int(off)+n > len(c.out) {
		return fmt.Errorf("data-out beyond the initiator's buffer: %d+%d of %d", off, n, len(c.out))
	}
	deliver := func() {
		at := off
		for _, s := range segs {
			at += uint32(copy(s, c.out[at:]))
		}
		t.DataOutDone(c.failOut)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.hold {
		c.waiting = deliver
		return nil
	}
	go deliver()
	return nil
}

func (p *testPort) Cancel(t *Task, _ volume.Port) {
	p.mu.Lock()
	c := p.calls[t]
	if c == nil || !t.Aborted() || c.waiting == nil {
		p.mu.Unlock()
		return
	}
	c.waiting = nil
	p.mu.Unlock()
	go t.DataOutDone(errors.New("cancelled"))
}

func (p *testPort) Respond(t *Task) {
	c := p.find(t)
	c.ended++
	close(c.done)
}

func (p *testPort) Describe(*volume.TracedCommand) {}

func (p *testPort) Via() volume.Port { return p }

func (p *testPort) Push() {
	p.mu.Lock()
	p.push++
	p.mu.Unlock()
}

// release lets the Data-Out of a held call through.
func (p *testPort) release(c *call) {
	p.mu.Lock()
	f := c.waiting
	c.waiting, c.hold = nil, false
	p.mu.Unlock()
	if f != nil {
		f()
	}
}

// rig is a device under test with one or more nexuses.
type rig struct {
	t    testing.TB
	dev  *Device
	port *testPort
	nx   []*Nexus
}

// newRig makes a device with a memory volume at LUN 0 and two nexuses whose
// first unit attention has been taken.
func newRig(t testing.TB, cfg Config, lus ...LUConfig) *rig {
	t.Helper()
	if cfg.Name == "" {
		cfg.Name = "iqn.2026-11.softiser:test"
	}
	d, err := NewDevice(cfg)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, dev: d, port: &testPort{calls: map[*Task]*call{}}}
	if len(lus) == 0 {
		lus = []LUConfig{{Volume: newVolume(t, 8<<20, 512)}}
	}
	for _, c := range lus {
		if _, err := d.AddLUN(c); err != nil {
			t.Fatal(err)
		}
	}
	r.nexus(1)
	r.nexus(2)
	t.Cleanup(r.close)
	return r
}

func newVolume(t testing.TB, size int64, bs int) blockdev.Device {
	t.Helper()
	v, err := mem.Open(mem.Config{Size: size, BlockSize: bs})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := v.Close(); err != nil {
			t.Error(err)
		}
	})
	return sameVolume{v, ""}
}

// sameVolume is a memory volume whose identity is its name, as that of a file is its
// path after a restart, too; by itself each of them is another disk.
type sameVolume struct {
	*mem.Device
	name string
}

func (v sameVolume) Info() blockdev.Info {
	i := v.Device.Info()
	i.ID = "memory:" + v.name
	return i
}

// newNamed is a memory volume of 1 MiB with an identity of its own.
func newNamed(t testing.TB, name string) blockdev.Device {
	t.Helper()
	return newSized(t, name, 1<<20)
}

func newSized(t testing.TB, name string, size int64) blockdev.Device {
	t.Helper()
	v, err := mem.Open(mem.Config{Size: size, Name: name})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { v.Close() })
	return sameVolume{v, name}
}

func (r *rig) nexus(id byte) *Nexus {
	r.t.Helper()
	n, err := r.dev.NewNexus(NexusConfig{Initiator: fmt.Sprintf("iqn.1994-05.com.example:host%d", id), ISID: [6]byte{5: id}})
	if err != nil {
		r.t.Fatal(err)
	}
	for _, i := range *n.itls.Load() {
		l := i.lun
		r.on(n, l, spc.AppendTestUnitReady(nil), nil, 0).sense(spc.KeyUnitAttention, spc.ASCPowerOnReset)
	}
	r.nx = append(r.nx, n)
	return n
}

func (r *rig) close() {
	for _, n := range r.nx {
		r.dev.CloseNexus(n)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := r.dev.Close(ctx); err != nil {
		r.t.Error(err)
	}
	// Who ends a command may give its buffer back behind the answer; where another device has the volume, too,
	// its workers do not end with this device.
	await.True(r.t, "the device's buffers have come back", func() bool { return r.dev.bufs.Out() == 0 })
	for _, lu := range r.dev.LUs() {
		await.True(r.t, "the volume's buffers have come back", func() bool { return lu.vol.BuffersOut() == 0 })
	}
}

// result is what a finished call left.
type result struct {
	t      testing.TB
	cdb    []byte
	status Status
	sd     spc.Sense
	data   []byte // Data-In that was sent
	sent   uint32
	wanted uint32
	silent bool
	raw    []byte // sense bytes
}

// start begins a call; finish waits for it.
func (r *rig) start(n *Nexus, lun uint16, cdb, out []byte, inLen int, opts ...func(*call)) *call {
	c := &call{in: make([]byte, inLen), out: out, done: make(chan struct{})}
	c.CDB, c.LUN, c.Attr = cdb, spc.EncodeLUN(lun), AttrSimple
	c.Nexus, c.Port = n, r.port
	c.InLen, c.OutLen = uint32(inLen), uint32(len(out))
	for _, o := range opts {
		o(c)
	}
	r.port.mu.Lock()
	r.port.calls[&c.Task] = c
	r.port.mu.Unlock()
	r.dev.Execute(&c.Task)
	return c
}

func (r *rig) finish(c *call) *result {
	r.t.Helper()
	select {
	case <-c.done:
	case <-time.After(time.Minute): // the whole machine may stall
		r.t.Fatalf("command % x does not end", c.CDB)
	}
	res := &result{t: r.t, cdb: c.CDB, status: c.Status, sent: c.Sent, wanted: c.Wanted, silent: c.Silent}
	res.data = c.in[:c.Sent]
	res.raw = append(res.raw, c.Sense[:c.SenseLen]...)
	if c.SenseLen > 0 {
		var err error
		if res.sd, err = spc.ParseSense(res.raw); err != nil {
			r.t.Error(err)
		}
	}
	if c.ended != 1 {
		r.t.Errorf("command % x ended %d times", c.CDB, c.ended)
	}
	c.Release()
	r.port.mu.Lock()
	delete(r.port.calls, &c.Task)
	r.port.mu.Unlock()
	return res
}

func (r *rig) on(n *Nexus, lun uint16, cdb, out []byte, inLen int, opts ...func(*call)) *result {
	r.t.Helper()
	return r.finish(r.start(n, lun, cdb, out, inLen, opts...))
}

// do runs a command from the first nexus on LUN 0.
func (r *rig) do(cdb, out []byte, inLen int, opts ...func(*call)) *result {
	r.t.Helper()
	return r.on(r.nx[0], 0, cdb, out, inLen, opts...)
}

func immediate(n int) func(*call) {
	return func(c *call) {
		c.Arrived = c.out[:n]
		c.UnsolicitedLen = uint32(n)
	}
}

func attr(a TaskAttr) func(*call) { return func(c *call) { c.Attr = a } }
func held(c *call)                { c.hold = true }

func (r *result) good() *result {
	r.t.Helper()
	if r.status != spc.StatusGood {
		r.t.Errorf("% x: status %v, sense %v; want GOOD", r.cdb, r.status, r.sd)
	}
	return r
}

func (r *result) is(s Status) *result {
	r.t.Helper()
	if r.status != s {
		r.t.Errorf("% x: status %v, sense %v; want %v", r.cdb, r.status, r.sd, s)
	}
	return r
}

func (r *result) sense(k spc.Key, a spc.ASC) *result {
	r.t.Helper()
	if r.status != spc.StatusCheckCondition || r.sd.Key != k || r.sd.ASC != a {
		r.t.Errorf("% x: status %v, sense %v; want %v %v", r.cdb, r.status, r.sd, k, a)
	}
	return r
}

func (r *result) illegal(a spc.ASC) *result {
	r.t.Helper()
	return r.sense(spc.KeyIllegalRequest, a)
}

// fill returns n bytes that depend on seed and position.
func fill(n int, seed byte) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = seed + byte(i) + byte(i>>8)*7
	}
	return b
}
