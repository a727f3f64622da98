package snap

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"testing"

	"softiser/blockdev"
	"softiser/blockdev/mem"
	"softiser/lvm/internal/lvmtest"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newMem(t testing.TB, size int64, pool *blockdev.Pool) blockdev.Device {
	m, err := mem.Open(mem.Config{Size: size, Pool: pool})
	must(t, err)
	t.Cleanup(func() { m.Close() })
	return m
}

const size = 1 << 20

// world is an origin with snapshots and what each must read as.
type world struct {
	t      *testing.T
	base   *lvmtest.Disk
	set    *Set
	origin *Origin
	model  []byte
	snaps  []*Snapshot
	cows   []*lvmtest.Disk
	models [][]byte
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, base: lvmtest.New(size), model: make([]byte, size)}
	w.set = NewSet(w.base, nil, nil)
	w.origin = w.set.Origin()
	return w
}

func (w *world) snapshot(chunk int64) { w.snapshotOn(lvmtest.New(4*size), chunk) }

func (w *world) snapshotOn(cow *lvmtest.Disk, chunk int64) {
	w.t.Helper()
	st, err := OpenStore(cow, chunk)
	must(w.t, err)
	w.cows = append(w.cows, cow)
	w.snaps = append(w.snaps, w.set.Add("s", st, size))
	w.models = append(w.models, bytes.Clone(w.model))
}

func (w *world) check(dev blockdev.Device, model []byte, what string) {
	w.t.Helper()
	if err := lvmtest.Differs(dev, model); err != nil {
		w.t.Fatalf("%s differs: %v", what, err)
	}
	var l blockdev.Lease
	must(w.t, dev.LeaseRead(&l, 8192, 65536, blockdev.Wait))
	if !bytes.Equal(bytes.Join(l.Segs, nil), model[8192:8192+65536]) {
		w.t.Fatalf("%s differs by lease", what)
	}
	l.Release()
}

func (w *world) checkAll() {
	w.t.Helper()
	w.check(w.origin, w.model, "origin")
	for i, s := range w.snaps {
		w.check(s, w.models[i], "snapshot")
	}
}

// reopen opens everything anew from the disks.
func (w *world) reopen() {
	w.set = NewSet(w.base, nil, nil)
	w.origin = w.set.Origin()
	for i, c := range w.cows {
		st, err := OpenStore(c, 4096)
		must(w.t, err)
		w.snaps[i] = w.set.Add("s", st, size)
	}
}

func (w *world) write(r *rand.Rand, dev blockdev.Device, model []byte) {
	n := 512 * (1 + r.IntN(40))
	off := 512 * r.IntN((size-n)/512)
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(r.Uint32())
	}
	switch r.IntN(4) {
	case 0:
		var l blockdev.Lease
		must(w.t, dev.LeaseWrite(&l, int64(off), n, blockdev.Wait))
		q := p
		for _, s := range l.Segs {
			q = q[copy(s, q):]
		}
		must(w.t, l.Commit(r.IntN(2) == 0))
		l.Release()
	case 1:
		clear(p)
		must(w.t, dev.WriteZeroes(int64(off), int64(n), false))
	default:
		_, err := dev.WriteAt(p, int64(off))
		must(w.t, err)
	}
	copy(model[off:], p)
}

// TestModel does random things to an origin with several snapshots of
// different chunk sizes, and merges one back in the end.
func TestModel(t *testing.T) {
	for seed := range uint64(4) {
		r := rand.New(rand.NewPCG(seed, 7))
		w := newWorld(t)
		for i := 0; i < 120; i++ {
			switch k := r.IntN(12); {
			case k == 0 && len(w.snaps) < 4:
				w.snapshot(int64(4096) << r.IntN(4))
			case k == 1:
				w.reopen()
			case k < 5 && len(w.snaps) > 0:
				j := r.IntN(len(w.snaps))
				w.write(r, w.snaps[j], w.models[j])
			default:
				w.write(r, w.origin, w.model)
			}
			if i%10 == 0 {
				w.checkAll()
			}
		}
		w.snapshot(4096)
		w.write(r, w.snaps[0], w.models[0])
		w.write(r, w.origin, w.model)
		w.checkAll()
		w.merge(r)
	}
}

// merge merges snapshot 0 while the origin and the others are written.
func (w *world) merge(r *rand.Rand) {
	must(w.t, w.set.StartMerge(w.snaps[0]))
	if w.set.StartMerge(w.snaps[1]) == nil {
		w.t.Fatal("two merges at once")
	}
	copy(w.model, w.models[0])
	others := func() {
		w.t.Helper()
		w.check(w.origin, w.model, "merging origin")
		for i := 1; i < len(w.snaps); i++ {
			w.check(w.snaps[i], w.models[i], "other snapshot")
		}
	}
	others()
	for step := 0; ; step++ {
		done, err := w.set.MergeStep()
		must(w.t, err)
		if done {
			break
		}
		if step%3 == 0 {
			w.write(r, w.origin, w.model)
			j := 1 + r.IntN(len(w.snaps)-1)
			w.write(r, w.snaps[j], w.models[j])
			others()
		}
		if step == 5 { // the process dies and comes back
			w.reopen()
			must(w.t, w.set.StartMerge(w.snaps[0]))
		}
	}
	w.set.Remove(w.snaps[0])
	others()
	got := make([]byte, size)
	if _, err := w.base.ReadAt(got, 0); err != nil || !bytes.Equal(got, w.model) {
		w.t.Fatal("the merged origin differs on its own disk", err)
	}
}

// TestOverflow: a full store invalidates its snapshot and nothing else.
func TestOverflow(t *testing.T) {
	w := newWorld(t)
	w.snapshot(4096)
	small := lvmtest.New(5 * 4096)
	st, err := OpenStore(small, 4096)
	must(t, err)
	s := w.set.Add("small", st, size)
	var own blockdev.Lease // of what it has itself, lent before it is lost
	p := bytes.Repeat([]byte{1}, 4096)
	for i := range 5 {
		_, err := w.origin.WriteAt(p, int64(i)*8192)
		must(t, err)
		copy(w.model[i*8192:], p)
		if u := s.Usage(); u.Valid != (i < 3) {
			t.Fatalf("after %d chunks: %+v", i+1, u)
		}
		if i == 0 {
			must(t, s.LeaseWrite(&own, 0, 4096, blockdev.Wait))
		}
	}
	if err := own.Commit(true); !errors.Is(err, ErrInvalid) {
		t.Errorf("what is written by a lease: %v", err)
	}
	own.Release()
	if _, err := s.ReadAt(p, 0); !errors.Is(err, ErrInvalid) || !errors.Is(err, blockdev.ErrMedium) {
		t.Fatal(err)
	}
	if _, err := s.WriteAt(p, 0); !errors.Is(err, ErrInvalid) {
		t.Fatal(err)
	}
	if err := s.Flush(); !errors.Is(err, ErrInvalid) || !errors.Is(err, blockdev.ErrMedium) {
		t.Errorf("flush: %v", err)
	}
	if err := s.FlushRange(0, 4096); !errors.Is(err, ErrInvalid) {
		t.Errorf("flush of a range: %v", err)
	}
	if es, err := s.Extents(0, size); !errors.Is(err, ErrInvalid) || !errors.Is(err, blockdev.ErrMedium) {
		t.Fatalf("what is known of its data: %v, %v", es, err)
	}
	if w.set.StartMerge(s) == nil {
		t.Fatal("an invalid snapshot was merged")
	}
	w.checkAll()
	st, err = OpenStore(small, 4096)
	must(t, err)
	if st.valid || st.usage().Percent() != 100 {
		t.Fatal("the mark is not on disk")
	}
}

// TestLayout checks the bytes on the store against the format.
func TestLayout(t *testing.T) {
	w := newWorld(t)
	w.snapshot(512) // 32 entries to an area
	p := make([]byte, 512)
	for i := range 40 {
		p[0] = byte(i + 1)
		_, err := w.origin.WriteAt(p, int64(i)*1024)
		must(t, err)
	}
	b := make([]byte, 60*512)
	w.cows[0].ReadAt(b, 0)
	le := binary.LittleEndian
	if le.Uint32(b) != 0x70416e53 || le.Uint32(b[4:]) != 1 || le.Uint32(b[8:]) != 1 || le.Uint32(b[12:]) != 1 {
		t.Fatalf("header % x", b[:16])
	}
	entry := func(area, i int) (uint64, uint64) {
		o := (1+33*area)*512 + i*16
		return le.Uint64(b[o:]), le.Uint64(b[o+8:])
	}
	for i := range 40 {
		f, to := entry(i/32, i%32)
		want := uint64(2 + i)
		if i >= 32 {
			want++ // chunk 34 is area 1
		}
		if f != uint64(2*i) || to != want {
			t.Errorf("entry %d: %d → %d, want %d", i, f, to, want)
		}
	}
	if _, to := entry(1, 8); to != 0 {
		t.Error("the list does not end")
	}
}

// TestCrash cuts the power after each write to the store or the origin: the
// snapshot still reads as it was, and what was acknowledged and flushed is
// there.
func TestCrash(t *testing.T) {
	for _, which := range []string{"cow", "base"} {
		for cut := 1; cut < 40; cut++ {
			for seed := range uint64(2) {
				w := newWorld(t)
				r := rand.New(rand.NewPCG(seed, 3))
				w.write(r, w.origin, w.model)
				must(t, w.origin.Flush())
				w.snapshot(512)
				frozen := bytes.Clone(w.model)
				w.base.Tie(w.cows[0])
				w.cows[0].Tie(w.base)
				if which == "cow" {
					w.cows[0].CutAfter(cut)
				} else {
					w.base.CutAfter(cut)
				}
				p := bytes.Repeat([]byte{0xee}, 512)
				for i := range 60 {
					if _, err := w.origin.WriteAt(p, int64(i*1536)); err != nil {
						break
					}
				}
				crash := rand.New(rand.NewPCG(seed, uint64(cut)))
				base, cow := w.base.Crash(crash), w.cows[0].Crash(crash)
				st, err := OpenStore(cow, 512)
				must(t, err)
				s := NewSet(base, nil, nil).Add("s", st, base.Info().Size)
				if !st.valid {
					t.Fatal("a power cut invalidated the snapshot")
				}
				got := make([]byte, size)
				if _, err := s.ReadAt(got, 0); err != nil || !bytes.Equal(got, frozen) {
					t.Fatalf("%s cut %d seed %d: snapshot changed: %v", which, cut, seed, err)
				}
			}
		}
	}
}

// The device of a store may hold anything from before: the list of exceptions ends
// where it ends, also when the last area has just become full.
func TestFullAreaOnUsedDevice(t *testing.T) {
	w := newWorld(t)
	used := lvmtest.New(4 * size)
	junk := bytes.Repeat([]byte{0xa5}, 4*size)
	clear(junk[:4096]) // no header: a new store
	_, err := used.WriteAt(junk, 0)
	must(t, err)
	w.snapshotOn(used, 4096)
	w.model = bytes.Repeat([]byte{1}, size)
	_, err = w.origin.WriteAt(w.model, 0)
	must(t, err)
	if st := w.snaps[0].st; len(st.table) != st.per {
		t.Fatalf("%d exceptions in areas of %d: that does not show it", len(st.table), st.per)
	}
	w.reopen()
	w.checkAll()
}

func TestBadStores(t *testing.T) {
	d := lvmtest.New(1 << 20)
	for name, h := range map[string][4]uint32{
		"magic":   {1, 1, 1, 8},
		"version": {magic, 1, 2, 8},
		"chunk 0": {magic, 1, 1, 0},
		"chunk 3": {magic, 1, 1, 3},
		"huge":    {magic, 1, 1, 1 << 30},
	} {
		b := make([]byte, 512)
		for i, v := range h {
			binary.LittleEndian.PutUint32(b[4*i:], v)
		}
		d.WriteAt(b, 0)
		if _, err := OpenStore(d, 4096); err == nil {
			t.Errorf("%s accepted", name)
		}
	}
}

func FuzzStore(f *testing.F) {
	b := make([]byte, 8192)
	binary.LittleEndian.PutUint32(b, magic)
	b[4], b[8], b[12] = 1, 1, 8
	f.Add(b)
	b = bytes.Clone(b)
	b[4096], b[4104] = 1, 2
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		d := lvmtest.New(256 << 10)
		if n := min(len(b), 64<<10) &^ 511; n > 0 {
			d.WriteAt(b[:n], 0)
		}
		st, err := OpenStore(d, 4096)
		if err != nil || !st.valid {
			return
		}
		s := NewSet(lvmtest.New(64<<10), nil, nil).Add("s", st, 64<<10)
		p := make([]byte, 64<<10)
		if _, err := s.ReadAt(p, 0); err != nil {
			t.Fatal(err)
		}
		s.WriteAt(p[:4096], 0)
		s.Changed()
	})
}

func BenchmarkOriginFirstWrite(b *testing.B) {
	base, cow := newMem(b, 64<<20, nil), newMem(b, 1<<30, nil)
	p := make([]byte, 4096)
	st, err := OpenStore(cow, 4096)
	must(b, err)
	s := NewSet(base, nil, nil)
	s.Add("s", st, s.base.Info().Size)
	o := s.Origin()
	b.SetBytes(4096)
	for i := 0; b.Loop(); i++ {
		if _, err := o.WriteAt(p, int64(i%16384)*4096); err != nil {
			b.Fatal(err)
		}
	}
}
