package lvm

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"softiser/blockdev"
	"softiser/lvm/internal/lvmtest"
	"softiser/lvm/vg"
)

// oracle is a group as a test sees it: names and contents.
type oracle struct {
	t     *testing.T
	g     *Group
	cfg   Config
	r     *rand.Rand
	disks []*lvmtest.Disk
	vols  map[string]*model
	n     int
}

type model struct {
	data   []byte
	origin string // of a snapshot
	thin   bool
}

func (o *oracle) names(f func(*model) bool) []string {
	var out []string
	for n, m := range o.vols {
		if f == nil || f(m) {
			out = append(out, n)
		}
	}
	slices.Sort(out)
	return out
}

// pick returns one of the volumes for which f holds, "" if there is none.
func (o *oracle) pick(f func(*model) bool) string {
	ns := o.names(f)
	if len(ns) == 0 {
		return ""
	}
	return ns[o.r.IntN(len(ns))]
}

func (o *oracle) name() string { o.n++; return fmt.Sprintf("v%d", o.n) }

func (o *oracle) hasSnapshots(name string) bool {
	return len(o.names(func(m *model) bool { return !m.thin && m.origin == name })) > 0
}

const ext = 65536

func (o *oracle) create() {
	n := o.name()
	k := 2 * (1 + o.r.IntN(8))
	stripes := 1 + o.r.IntN(2)
	must(o.t, o.g.Create(CreateOptions{Name: n, Extents: uint64(k), Stripes: stripes, StripeSize: 16}, "lvcreate"))
	v := volume(o.t, o.g, n)
	d := make([]byte, k*ext)
	// Extents may hold what an earlier volume left; lvm2 does not clear them.
	must(o.t, v.WriteZeroes(0, int64(len(d)), false))
	must(o.t, v.Close())
	o.vols[n] = &model{data: d}
}

func (o *oracle) createThin() {
	n := o.name()
	k := 4 + o.r.IntN(60)
	must(o.t, o.g.CreateThin(bg, ThinOptions{Pool: "pool", Name: n, Extents: uint64(k)}, "lvcreate"))
	o.vols[n] = &model{data: make([]byte, k*ext), thin: true}
}

func (o *oracle) snapshot() {
	from := o.pick(func(m *model) bool { return m.thin || m.origin == "" })
	if from == "" {
		return
	}
	n := o.name()
	m := o.vols[from]
	if m.thin {
		must(o.t, o.g.CreateThin(bg, ThinOptions{Name: n, Origin: from, NoSkip: true}, "lvcreate"))
	} else {
		must(o.t, o.g.Snapshot(bg, SnapshotOptions{Origin: from, Name: n, Extents: uint64(len(m.data)/ext) + 4, Chunk: 4096 << o.r.IntN(4)}, "lvcreate"))
	}
	o.vols[n] = &model{data: bytes.Clone(m.data), origin: from, thin: m.thin}
}

func (o *oracle) write() {
	n := o.pick(nil)
	v := volume(o.t, o.g, n)
	m := o.vols[n]
	for range 1 + o.r.IntN(6) {
		k := 512 * (1 + o.r.IntN(100))
		k = min(k, len(m.data))
		off := o.r.IntN((len(m.data)-k)/512+1) * 512
		p := make([]byte, k)
		for i := range p {
			p[i] = byte(o.r.Uint32())
		}
		switch o.r.IntN(4) {
		case 0:
			var l blockdev.Lease
			must(o.t, v.LeaseWrite(&l, int64(off), k, blockdev.Wait))
			q := p
			for _, s := range l.Segs {
				q = q[copy(s, q):]
			}
			must(o.t, l.Commit(false))
			l.Release()
		case 1:
			clear(p)
			must(o.t, v.WriteZeroes(int64(off), int64(k), true))
		default:
			_, err := v.WriteAt(p, int64(off))
			must(o.t, err)
		}
		copy(m.data[off:], p)
	}
	must(o.t, v.Close())
}

func (o *oracle) extend() {
	n := o.pick(func(m *model) bool { return m.thin || m.origin == "" })
	if n == "" {
		return
	}
	m := o.vols[n]
	k := len(m.data)/ext + 2*(1+o.r.IntN(3))
	must(o.t, o.g.Extend(n, ExtendOptions{Extents: uint64(k)}, "lvextend"))
	old := len(m.data)
	size := int(o.g.Metadata().LV(n).Extents()) * ext
	m.data = append(m.data, make([]byte, size-old)...)
	if !m.thin {
		v := volume(o.t, o.g, n)
		must(o.t, v.WriteZeroes(int64(old), int64(size-old), false))
		must(o.t, v.Close())
	}
}

func (o *oracle) remove() {
	n := o.pick(nil)
	if !o.vols[n].thin && o.hasSnapshots(n) {
		return
	}
	must(o.t, o.g.Remove(bg, n, "lvremove"))
	delete(o.vols, n)
}

func (o *oracle) merge() {
	n := o.pick(func(m *model) bool { return m.origin != "" })
	if n == "" {
		return
	}
	m := o.vols[n]
	origin := o.vols[m.origin]
	if origin == nil || o.g.Metadata().LV(n).Segments[0].Type == "thin" && o.g.Metadata().LV(n).Segments[0].Origin == "" {
		return
	}
	done, err := o.g.Merge(bg, n, "lvconvert")
	must(o.t, err)
	if err := <-done; err != nil {
		o.t.Fatal(err)
	}
	if m.thin {
		origin.data = m.data
	} else {
		copy(origin.data, m.data) // which may have grown since
	}
	for _, x := range o.vols {
		if x.thin && x.origin == n {
			x.origin = m.origin
		}
	}
	delete(o.vols, n)
}

// diff: what Diff does not name must be equal.
func (o *oracle) diff() {
	a := o.pick(func(m *model) bool { return m.origin != "" })
	if a == "" || o.vols[o.vols[a].origin] == nil {
		return
	}
	b := o.vols[a].origin
	cs, err := o.g.Diff(bg, a, b)
	must(o.t, err)
	x, y := bytes.Clone(o.vols[a].data), o.vols[b].data
	n := min(len(x), len(y))
	for _, c := range cs {
		hi := min(c.Off+c.Len, int64(n))
		if c.Off < hi {
			if !c.Data && !bytes.Equal(y[c.Off:hi], make([]byte, hi-c.Off)) {
				o.t.Fatalf("diff calls %d+%d zero, which it is not", c.Off, c.Len)
			}
			copy(x[c.Off:hi], y[c.Off:hi])
		}
	}
	if !bytes.Equal(x[:n], y[:n]) {
		o.t.Fatalf("diff of %s and %s misses something: %v", a, b, cs)
	}
}

func (o *oracle) check() {
	o.t.Helper()
	for n, m := range o.vols {
		v, err := o.g.Volume(n)
		must(o.t, err)
		same(o.t, v, m.data, n)
		must(o.t, v.Close())
	}
	shown := 0
	v := o.g.Metadata()
	for _, lv := range v.LVs {
		if v.Shown(lv) && lv.Name != "pool" {
			shown++
		}
	}
	if shown != len(o.vols) {
		o.t.Fatalf("%d volumes, not %d", shown, len(o.vols))
	}
}

// TestModel does random operations on a group and compares it with an oracle
// in memory, across reopenings.
func TestModel(t *testing.T) {
	for seed := range uint64(2) {
		o := &oracle{t: t, r: rand.New(rand.NewPCG(seed, 17)), vols: map[string]*model{}}
		devs := map[string]blockdev.Device{}
		for i := range 3 {
			d := lvmtest.New(64 << 20).Quiet()
			o.disks = append(o.disks, d)
			devs[fmt.Sprintf("/d%d", i)] = d
		}
		o.g, o.cfg = groupOn(t, devs)
		must(t, o.g.CreatePool(PoolOptions{Name: "pool", Extents: 800}, "lvcreate"))
		o.create()
		o.createThin()
		for i := range 150 {
			switch k := o.r.IntN(30); {
			case len(o.vols) == 0 || k < 2 && len(o.vols) < 10:
				o.create()
			case k < 4 && len(o.vols) < 10:
				o.createThin()
			case k < 7 && len(o.vols) < 10:
				o.snapshot()
			case k < 9:
				o.extend()
			case k == 9:
				o.remove()
			case k == 10:
				o.merge()
			case k < 13:
				o.diff()
			case k == 13:
				o.g = reopen(t, o.g, o.cfg, 3)
			case k == 14:
				pv := o.g.Metadata().PVs[o.r.IntN(3)].Name
				if err := o.g.Move(bg, MoveOptions{From: vg.Range{PV: pv, Off: uint64(o.r.IntN(200)), Len: 100}}, "pvmove"); err == nil {
					o.check()
				}
			default:
				o.write()
			}
			if i%15 == 0 {
				o.check()
			}
		}
		o.check()
		must(t, o.g.Close())
	}
}

// TestMoveCrash cuts the power at every step of a pvmove: each state on disk is
// an ordinary one with the same content, and the move can be done again.
func TestMoveCrash(t *testing.T) {
	off := MoveOptions{From: vg.Range{PV: "pv0"}}
	for cut := 1; ; cut += 2 {
		a, b := lvmtest.New(16<<20), lvmtest.New(16<<20)
		g, cfg := groupOn(t, map[string]blockdev.Device{"/d0": a, "/d1": b})
		must(t, g.Create(CreateOptions{Name: "v", Extents: 40, From: []vg.Range{{PV: "pv0"}}}, "lvcreate"))
		v := volume(t, g, "v")
		data := make([]byte, 40*ext)
		for i := range data {
			data[i] = byte(i / 512 * 7)
		}
		_, err := v.WriteAt(data, 0)
		must(t, err)
		must(t, v.Close())
		a.Tie(b)
		b.Tie(a)
		b.CutAfter(cut)
		err = g.Move(bg, off, "pvmove")
		r := rand.New(rand.NewPCG(uint64(cut), 3))
		crashed := map[string]blockdev.Device{"/d0": a.Crash(r), "/d1": b.Crash(r)}
		cfg.Open = func(p string) (blockdev.Device, error) { return crashed[p], nil }
		h, oerr := Open(cfg, []string{"/d0", "/d1"}, "vg0")
		must(t, oerr)
		w := volume(t, h, "v")
		same(t, w, data, "after the cut")
		if err != nil {
			if left := off.extents(h.Metadata()); left > 0 {
				must(t, h.Move(bg, off, "pvmove"))
			}
			same(t, w, data, "after moving on")
		}
		must(t, w.Close())
		must(t, h.Close())
		if err == nil {
			return
		}
	}
}

// TestMoveStops: a move that is told to stop ends after a run of extents, with
// ordinary metadata, and another goes on from there.
func TestMoveStops(t *testing.T) {
	const extents = moveRun/ext + 64
	g, cfg := groupOn(t, map[string]blockdev.Device{"/d0": lvmtest.New(48 << 20).Quiet(), "/d1": lvmtest.New(48 << 20).Quiet()})
	must(t, g.Create(CreateOptions{Name: "v", Extents: extents, From: []vg.Range{{PV: "pv0"}}}, "lvcreate"))
	v := volume(t, g, "v")
	data := make([]byte, extents*ext)
	for i := 0; i < len(data); i += 512 { // the rest of each block is zeroes
		binary.LittleEndian.PutUint32(data[i:], uint32(i))
	}
	_, err := v.WriteAt(data, 0)
	must(t, err)
	ctx, cancel := context.WithCancel(bg)
	defer cancel()
	var first uint64
	seqno := g.Metadata().Seqno
	off := MoveOptions{From: vg.Range{PV: "pv0"}, Progress: func(done, _ uint64) { first = done; cancel() }}
	err = g.Move(ctx, off, "pvmove")
	if !errors.Is(err, context.Canceled) || first == 0 || first > moveRun/ext {
		t.Fatalf("%v after %d extents", err, first)
	}
	if md := g.Metadata(); md.Seqno != seqno+1 || off.extents(md) != extents-first || len(md.LVs) != 1 {
		t.Errorf("after %d extents %d commits, %d volumes, %d extents left", first, md.Seqno-seqno, len(md.LVs), off.extents(md))
	}
	same(t, v, data, "the half moved volume")
	must(t, v.Close())
	g = reopen(t, g, cfg, 2)
	must(t, g.Move(bg, MoveOptions{From: vg.Range{PV: "pv0"}}, "pvmove"))
	v = volume(t, g, "v")
	same(t, v, data, "the moved volume")
	must(t, v.Close())
	must(t, g.Close())
}
