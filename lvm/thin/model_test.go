package thin

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"softiser/blockdev"
	"softiser/lvm/internal/lvmtest"
)

// vol is a volume and what it must read as.
type vol struct {
	id    uint64
	dev   *Device
	model []byte
}

type world struct {
	t    testing.TB
	p    *Pool
	meta *lvmtest.Disk
	data *lvmtest.Disk
	vols []*vol
	next uint64
}

const volSize = 40*chunk - 8192 // the last block is a short one

func newWorld(t testing.TB, blocks int) *world {
	w := &world{t: t, next: 1}
	w.p, w.meta, w.data = newPool(t, blocks, nil)
	return w
}

func (w *world) open(v *vol) {
	d, err := w.p.Device(v.id, volSize, fmt.Sprint("t", v.id), false)
	must(w.t, err)
	v.dev = d
}

func (w *world) create() {
	v := &vol{id: w.next, model: make([]byte, volSize)}
	w.next++
	must(w.t, w.p.Create(v.id, w.next))
	w.open(v)
	w.vols = append(w.vols, v)
}

func (w *world) snapshot(o *vol) {
	v := &vol{id: w.next, model: bytes.Clone(o.model)}
	w.next++
	must(w.t, w.p.Snapshot(v.id, o.id, w.next))
	w.open(v)
	w.vols = append(w.vols, v)
}

func (w *world) remove(i int) {
	v := w.vols[i]
	must(w.t, v.dev.Close())
	must(w.t, w.p.Delete(v.id, w.next))
	w.vols = slices.Delete(w.vols, i, i+1)
}

func (w *world) reopen() {
	for _, v := range w.vols {
		must(w.t, v.dev.Close())
	}
	must(w.t, w.p.Close())
	p, err := openPool(w.meta, w.data, nil)
	must(w.t, err)
	w.p = p
	for _, v := range w.vols {
		w.open(v)
	}
}

func (w *world) checkAll() {
	w.t.Helper()
	for _, v := range w.vols {
		if err := lvmtest.Differs(v.dev, v.model); err != nil {
			w.t.Fatalf("device %d differs: %v", v.id, err)
		}
		var l blockdev.Lease
		must(w.t, v.dev.LeaseRead(&l, chunk-4096, 3*chunk, blockdev.Wait))
		if !bytes.Equal(bytes.Join(l.Segs, nil), v.model[chunk-4096:4*chunk-4096]) {
			w.t.Fatalf("device %d differs by lease", v.id)
		}
		l.Release()
	}
}

// write does one random change; full is what is allowed to happen.
func (w *world) write(r *rand.Rand, v *vol) {
	n := 512 * (1 + r.IntN(300))
	off := 512 * r.IntN((volSize-n)/512)
	if r.IntN(4) == 0 {
		off = off / chunk * chunk
	}
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(r.Uint32())
	}
	switch r.IntN(6) {
	case 0, 1:
		var l blockdev.Lease
		must(w.t, v.dev.LeaseWrite(&l, int64(off), n, blockdev.Wait))
		q := p
		for _, s := range l.Segs {
			q = q[copy(s, q):]
		}
		must(w.t, l.Commit(r.IntN(4) == 0))
		l.Release()
	case 2:
		clear(p)
		must(w.t, v.dev.Discard(int64(off), int64(n)))
	case 3:
		clear(p)
		must(w.t, v.dev.WriteZeroes(int64(off), int64(n), r.IntN(2) == 0))
	default:
		_, err := v.dev.WriteAt(p, int64(off))
		must(w.t, err)
	}
	copy(v.model[off:], p)
}

// diff compares Diff with the models.
func (w *world) diff(a, b *vol) {
	w.t.Helper()
	cs, err := w.p.Diff(a.id, b.id)
	must(w.t, err)
	changed := make([]bool, volSize/chunk+1)
	last := int64(-1)
	for _, c := range cs {
		if c.Off <= last {
			w.t.Fatal("diff is not in order")
		}
		last = c.Off
		for at := c.Off; at < c.Off+c.Len; at += chunk {
			changed[at/chunk] = true
		}
	}
	for i := range changed {
		lo, hi := i*chunk, min((i+1)*chunk, volSize)
		if !bytes.Equal(a.model[lo:hi], b.model[lo:hi]) && !changed[i] {
			w.t.Fatalf("diff of %d and %d misses block %d", a.id, b.id, i)
		}
	}
}

// TestModel does random things to volumes, snapshots and snapshots of
// snapshots; thin_check agrees with every state on disk.
func TestModel(t *testing.T) {
	seeds := uint64(3)
	if testing.Short() {
		seeds = 1
	}
	for seed := range seeds {
		r := rand.New(rand.NewPCG(seed, 99))
		w := newWorld(t, 600)
		w.create()
		for i := 0; i < 250; i++ {
			switch k := r.IntN(20); {
			case k == 0 && len(w.vols) < 6:
				w.create()
			case k < 3 && len(w.vols) < 8:
				w.snapshot(w.vols[r.IntN(len(w.vols))])
			case k == 3 && len(w.vols) > 2:
				w.remove(r.IntN(len(w.vols)))
			case k == 4:
				w.reopen()
			case k == 5:
				must(t, w.p.Commit())
				check(t, w.meta)
			case k == 6 && len(w.vols) > 1:
				a := r.IntN(len(w.vols))
				w.diff(w.vols[a], w.vols[(a+1)%len(w.vols)])
			default:
				w.write(r, w.vols[r.IntN(len(w.vols))])
			}
			if i%25 == 0 {
				w.checkAll()
			}
		}
		w.checkAll()
		for len(w.vols) > 0 {
			w.remove(0)
		}
		must(t, w.p.Close())
		check(t, w.meta)
		if u := w.p.Usage(); u.DataUsed != 0 {
			t.Fatalf("%d data blocks leaked", u.DataUsed)
		}
	}
}

// TestCrash cuts the power after each write to the metadata, in many ways of
// losing unflushed writes: what was flushed reads back, and thin_check agrees.
func TestCrash(t *testing.T) {
	for cut := 1; cut < 150; cut += 13 {
		r := rand.New(rand.NewPCG(uint64(cut), 5))
		w := newWorld(t, 300)
		w.create()
		v := w.vols[0]
		for range 5 {
			w.write(r, v)
		}
		w.snapshot(v)
		must(t, v.dev.Flush())
		flushed := bytes.Clone(v.model)
		snap := bytes.Clone(w.vols[1].model)
		w.meta.Tie(w.data)
		w.data.Tie(w.meta)
		w.meta.CutAfter(cut)
		// From here to the cut only blocks that the flush does not cover.
		pending := bytes.Clone(v.model)
		touched := map[int]bool{}
		for i := 0; ; i++ {
			off := r.IntN(volSize/4096) * 4096
			p := bytes.Repeat([]byte{byte(i + 1)}, 4096)
			if _, err := v.dev.WriteAt(p, int64(off)); err != nil {
				touched[off/4096] = true
				break
			}
			copy(pending[off:], p)
			touched[off/4096] = true
			if i%3 == 2 {
				if v.dev.Flush() != nil {
					break
				}
				flushed, touched = bytes.Clone(pending), map[int]bool{}
			}
		}
		for seed := range uint64(2) {
			cr := rand.New(rand.NewPCG(seed, uint64(cut)))
			meta, data := w.meta.Crash(cr), w.data.Crash(cr)
			check(t, meta)
			p, err := openPool(meta, data, nil)
			must(t, err)
			got := make([]byte, volSize)
			d, err := p.Device(1, volSize, "t", false)
			must(t, err)
			_, err = d.ReadAt(got, 0)
			must(t, err)
			for i := 0; i < volSize/4096; i++ {
				lo := i * 4096
				if !touched[i] && !bytes.Equal(got[lo:lo+4096], flushed[lo:lo+4096]) {
					t.Fatalf("cut %d seed %d: flushed data lost at %d", cut, seed, lo)
				}
			}
			s, err := p.Device(2, volSize, "s", false)
			must(t, err)
			_, err = s.ReadAt(got, 0)
			must(t, err)
			if !bytes.Equal(got, snap) {
				t.Fatalf("cut %d seed %d: the snapshot changed", cut, seed)
			}
		}
	}
}
