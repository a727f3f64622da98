// Package swap has the device that stays while what is behind it changes: a
// logical volume that is resized, moved, snapshotted or merged under running
// I/O.
//
//	caller ── Device ── gen 7 ── table, origin, thin volume ...
//	                └── gen 6    (retired: drains its open leases)
//
// An operation enters the current generation and holds it until it is done; a
// lease holds it until its release. A switch puts a new generation in front
// and waits for the old one to drain where it matters.
//
// A peer may hold a lease for as long as it likes, so nothing here makes one
// command wait for another's lease: before a freeze, new write leases are
// staged in pool memory, the direct ones drain at their own pace while I/O
// goes on, and only then are writes stopped, for as long as the storage work
// takes. Nor does a freeze wait for writes that wait for space in a full thin
// pool: they step aside and begin anew after it.
package swap

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"softiser/blockdev"
)

// Device is a blockdev.Device whose lower device can be exchanged.
type Device struct {
	cur atomic.Pointer[gen]

	// gate is held for reading by everything that changes content by a call
	// (not by a direct lease), and for writing while frozen.
	gate sync.RWMutex

	// change serialises freezes and switches. It is taken before gate.
	change sync.Mutex
	older  []*gen // retired ones that have not drained; guarded by change

	hooks blockdev.ResizeHooks

	stage stager
	pool  *blockdev.Pool
}

// gen is one lower device and who is in it. It is the Owner of leases.
type gen struct {
	d       *Device
	dev     blockdev.Device
	lender  blockdev.Lender
	staged  bool // write leases are staged
	refs    atomic.Int64
	retired atomic.Bool
	drained chan struct{}
	once    sync.Once

	// wanted is closed when nobody may wait for space in it any longer: it is
	// retired, or about to be frozen.
	wanted chan struct{}
	asked  sync.Once
}

// New puts a Device before dev, which it owns: Close closes it. dev must be
// the owner of the leases it gives. pool is the staging memory, nil for the
// shared one.
func New(dev blockdev.Device, pool *blockdev.Pool) *Device {
	if pool == nil {
		pool = blockdev.DefaultPool()
	}
	d := &Device{pool: pool}
	d.stage.d = d
	d.cur.Store(d.newGen(dev, false))
	return d
}

func (d *Device) newGen(dev blockdev.Device, staged bool) *gen {
	l, _ := dev.(blockdev.Lender)
	return &gen{d: d, dev: dev, lender: l, staged: staged, drained: make(chan struct{}), wanted: make(chan struct{})}
}

func (d *Device) enter() *gen {
	for {
		g := d.cur.Load()
		g.refs.Add(1)
		if d.cur.Load() == g {
			return g
		}
		g.leave()
	}
}

func (g *gen) leave() {
	if g.refs.Add(-1) == 0 && g.retired.Load() {
		g.once.Do(func() { close(g.drained) })
	}
}

// want has those who wait for space in the generation leave it.
func (g *gen) want() { g.asked.Do(func() { close(g.wanted) }) }

// retire marks a generation that is no longer current; drained closes when
// the last one has left.
func (g *gen) retire() {
	g.retired.Store(true)
	g.want()
	if g.refs.Load() == 0 {
		g.once.Do(func() { close(g.drained) })
	}
}

// Inner returns the current lower device.
func (d *Device) Inner() blockdev.Device { return d.cur.Load().dev }

// Switch puts dev in the place of the lower device without waiting: for
// changes that leave every mapped byte where it is, as growing. The old one is
// not closed. Callbacks run if it has another size, or can do something else.
func (d *Device) Switch(dev blockdev.Device) {
	d.change.Lock()
	old := d.cur.Load()
	d.cur.Store(d.newGen(dev, false))
	d.retireLocked(old)
	d.change.Unlock()
	d.Announce(old.dev.Info())
}

// retireLocked retires g and remembers it until it has drained.
func (d *Device) retireLocked(g *gen) {
	g.retire()
	d.older = slices.DeleteFunc(append(d.older, g), func(o *gen) bool {
		select {
		case <-o.drained:
			return true
		default:
			return false
		}
	})
}

// Frozen is a device on which nothing writes.
type Frozen struct {
	d   *Device
	old *gen
	all []*gen // what Drain waits for
}

// Freeze stops writes. It first waits until all leases that are open have been
// released (meanwhile I/O goes on); if ctx ends before, nothing has changed.
// Reads go on all the time. Thaw must follow, on any goroutine.
func (d *Device) Freeze(ctx context.Context) (*Frozen, error) {
	d.change.Lock()
	old := d.cur.Load()
	g := d.newGen(old.dev, true)
	d.cur.Store(g)
	d.retireLocked(old)
	for _, o := range d.older {
		select {
		case <-o.drained:
		case <-ctx.Done():
			d.cur.Store(d.newGen(old.dev, false))
			d.retireLocked(g)
			d.change.Unlock()
			return nil, ctx.Err()
		}
	}
	g.want()
	d.gate.Lock()
	return &Frozen{d: d, old: g}, nil
}

// Inner is the lower device, for the work that the freeze is for.
func (f *Frozen) Inner() blockdev.Device { return f.old.dev }

// Thaw lets writes go on, on dev if not nil. The old device is not closed; it
// may still be read by open leases until Drain returns.
func (f *Frozen) Thaw(dev blockdev.Device) {
	d := f.d
	if dev == nil {
		dev = f.old.dev
	}
	d.cur.Store(d.newGen(dev, false))
	d.retireLocked(f.old)
	f.all = append(f.all, d.older...)
	d.gate.Unlock()
	d.change.Unlock()
	if dev != f.old.dev {
		d.Announce(f.old.dev.Info())
	}
}

// Drain waits, after Thaw, until no lease refers to the old device.
func (f *Frozen) Drain(ctx context.Context) error {
	for _, g := range f.all {
		select {
		case <-g.drained:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// Announce runs the callbacks if the device is not what it was: for one whose lower device has
// changed by itself.
func (d *Device) Announce(was blockdev.Info) {
	is := d.Info()
	if was.CacheID = is.CacheID; was != is { // whoever asks for that asks anew
		d.hooks.Tell(d.Info)
	}
}

// OnResize implements blockdev.Device.
func (d *Device) OnResize(f func(blockdev.Info)) (cancel func()) { return d.hooks.Add(f) }

// Info implements blockdev.Device.
func (d *Device) Info() blockdev.Info { return d.cur.Load().dev.Info() }

// Close closes the current lower device.
func (d *Device) Close() error { return d.cur.Load().dev.Close() }

// Busy reports whether a lease or a call is in the device.
func (d *Device) Busy() bool {
	d.change.Lock()
	defer d.change.Unlock()
	if d.cur.Load().refs.Load() != 0 || d.stage.open.Load() != 0 {
		return true
	}
	for _, g := range d.older {
		if g.refs.Load() != 0 {
			return true
		}
	}
	return false
}
