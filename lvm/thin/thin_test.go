package thin

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"softiser/blockdev"
	"softiser/blockdev/mem"
	"softiser/lvm/internal/lvmtest"
)

const chunk = 64 << 10

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// check runs Debian's thin_check over the metadata, if it is installed.
func check(t testing.TB, meta *lvmtest.Disk) {
	t.Helper()
	bin, err := exec.LookPath("thin_check")
	if err != nil {
		bin = "/usr/sbin/thin_check"
		if _, err := os.Stat(bin); err != nil {
			return
		}
	}
	b := make([]byte, meta.Info().Size)
	_, err = meta.ReadAt(b, 0)
	must(t, err)
	f := filepath.Join(t.TempDir(), "meta")
	must(t, os.WriteFile(f, b, 0o600))
	if out, err := exec.Command(bin, f).CombinedOutput(); err != nil {
		keep := "/tmp/thin-bad-meta"
		os.WriteFile(keep, b, 0o600)
		t.Fatalf("thin_check: %v (metadata kept in %s)\n%s", err, keep, out)
	}
}

func newPool(t testing.TB, blocks int, o func(*Config)) (*Pool, *lvmtest.Disk, *lvmtest.Disk) {
	t.Helper()
	meta, data := lvmtest.New(2<<20), lvmtest.New(int64(blocks)*chunk)
	p, err := openPool(meta, data, o)
	must(t, err)
	return p, meta, data
}

func openPool(meta, data *lvmtest.Disk, o func(*Config)) (*Pool, error) {
	c := Config{Meta: meta, Data: data, ChunkSize: chunk, Zero: true, Discard: true, ErrorWhenFull: true}
	if o != nil {
		o(&c)
	}
	return Open(c)
}

func TestFormat(t *testing.T) {
	p, meta, data := newPool(t, 64, nil)
	check(t, meta)
	must(t, p.Create(1, 1))
	check(t, meta)
	if err := p.Create(1, 2); !errors.Is(err, ErrExists) {
		t.Fatal(err)
	}
	if err := p.Delete(9, 2); !errors.Is(err, ErrNoDevice) {
		t.Fatal(err)
	}
	if err := p.Snapshot(2, 9, 2); !errors.Is(err, ErrNoDevice) {
		t.Fatal(err)
	}
	must(t, p.Close())
	p, err := openPool(meta, data, nil)
	must(t, err)
	if p.Transaction() != 1 {
		t.Fatal(p.Transaction())
	}
	must(t, p.Delete(1, 2))
	must(t, p.Close())
	check(t, meta)
	if u := p.Usage(); u.DataUsed != 0 {
		t.Fatalf("%+v", u)
	}
}

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
	got := make([]byte, volSize)
	for _, v := range w.vols {
		if _, err := v.dev.ReadAt(got, 0); err != nil || !bytes.Equal(got, v.model) {
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
	for seed := range uint64(3) {
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

// TestFull: a full pool says so, loses nothing, and goes on when it grows.
func TestFull(t *testing.T) {
	var told []string
	p, meta, data := newPool(t, 4, func(c *Config) { c.Notice = func(s string) { told = append(told, s) } })
	must(t, p.Create(1, 1))
	d, err := p.Device(1, 100*chunk, "t", false)
	must(t, err)
	b := bytes.Repeat([]byte{7}, chunk)
	for i := range 4 {
		_, err := d.WriteAt(b, int64(i)*chunk)
		must(t, err)
	}
	if _, err := d.WriteAt(b, 4*chunk); !errors.Is(err, blockdev.ErrNoSpace) {
		t.Fatal(err)
	}
	if len(told) != 2 || !strings.Contains(told[0], "data is now 100.00% full") || !strings.Contains(told[1], "out of data") || p.Usage().Refused != 1 {
		t.Fatal(told, p.Usage())
	}
	if _, err := d.WriteAt(b, 0); err != nil {
		t.Fatal("overwriting what is mapped failed:", err)
	}
	must(t, d.Discard(0, chunk))
	_, err = d.WriteAt(b, 4*chunk) // the discarded block comes back
	must(t, err)
	data.Grow(8 * chunk)
	must(t, p.Grow())
	_, err = d.WriteAt(b, 5*chunk)
	must(t, err)
	must(t, d.Close())
	must(t, p.Close())
	check(t, meta)
}

// TestQueue: with error_when_full off, a write waits for the pool to grow.
func TestQueue(t *testing.T) {
	p, _, data := newPool(t, 1, func(c *Config) { c.ErrorWhenFull = false; c.FullWait = time.Minute })
	must(t, p.Create(1, 1))
	d, err := p.Device(1, 100*chunk, "t", false)
	must(t, err)
	b := make([]byte, 512)
	_, err = d.WriteAt(b, 0)
	must(t, err)
	done := make(chan error)
	go func() {
		_, err := d.WriteAt(b, chunk)
		done <- err
	}()
	data.Grow(2 * chunk)
	must(t, p.Grow())
	// The write may have come only after the growth; either way it succeeds.
	must(t, <-done)
	p.cfg.FullWait = time.Millisecond
	if _, err := d.WriteAt(b, 2*chunk); !errors.Is(err, blockdev.ErrNoSpace) {
		t.Fatal(err)
	}
}

// TestNoSpaceTimeout: a full pool holds its writers for a minute once, refuses
// at once from then on, and takes writes again when a block comes free.
func TestNoSpaceTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var low atomic.Int32
		p, _, _ := newPool(t, 2, func(c *Config) { c.ErrorWhenFull, c.FullWait = false, 0 })
		p.OnLowSpace(func() { low.Add(1) })
		must(t, p.Create(1, 1))
		d, err := p.Device(1, 100*chunk, "t", false)
		must(t, err)
		b := make([]byte, 512)
		began := time.Now()
		write := func(block int64) error { _, err := d.WriteAt(b, block*chunk); return err }
		must(t, write(0))
		must(t, write(1))
		synctest.Wait()
		if low.Load() != 1 { // 100 %
			t.Errorf("%d alarms", low.Load())
		}
		var wg sync.WaitGroup
		for i := range int64(4) {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * 10 * time.Second)
				if err := write(2 + i); !errors.Is(err, blockdev.ErrNoSpace) {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if d := time.Since(began); d != time.Minute {
			t.Errorf("the last writer was held until %v", d)
		}
		if err := write(9); !errors.Is(err, blockdev.ErrNoSpace) || time.Since(began) != time.Minute {
			t.Errorf("after the time-out: %v, %v", err, time.Since(began))
		}
		must(t, write(0)) // mapped
		must(t, d.Discard(0, chunk))
		must(t, write(2))
		go func() {
			time.Sleep(10*time.Second + time.Millisecond)
			if err := d.Discard(chunk, chunk); err != nil {
				t.Error(err)
			}
		}()
		must(t, write(3))
		if d := time.Since(began); d != time.Minute+10*time.Second+time.Millisecond {
			t.Errorf("a writer noticed the discard at %v", d)
		}
		if n := p.Usage().Refused; n != 5 {
			t.Errorf("%d writes were refused", n)
		}
		must(t, d.Close())
		must(t, p.Close())
		if low.Load() < 3 {
			t.Errorf("%d alarms", low.Load())
		}
	})
}

// TestMetadataFull fills a tiny metadata device.
func TestMetadataFull(t *testing.T) {
	meta, data := lvmtest.New(256*blockSize), lvmtest.New(60000*chunk).Quiet()
	p, err := openPool(meta, data, nil)
	must(t, err)
	must(t, p.Create(1, 1))
	d, err := p.Device(1, 60000*chunk, "t", false)
	must(t, err)
	b := make([]byte, 512)
	r := rand.New(rand.NewPCG(1, 1))
	var full error
	written := map[int64]bool{}
	for i := 0; i < 60000 && full == nil; i++ {
		at := int64(r.IntN(60000)) * chunk
		b[0] = byte(at / chunk)
		if _, full = d.WriteAt(b, at); full == nil {
			written[at] = true
		}
	}
	if !errors.Is(full, blockdev.ErrNoSpace) || !strings.Contains(full.Error(), "metadata") {
		t.Fatal(full)
	}
	must(t, d.Flush())
	check(t, meta)
	for at := range written {
		_, err := d.ReadAt(b, at)
		must(t, err)
		if b[0] != byte(at/chunk) {
			t.Fatal("content lost")
		}
	}
	for at := range written { // room can be made
		must(t, d.Discard(at, chunk))
	}
	must(t, d.Close())
	must(t, p.Close())
	check(t, meta)
	meta.Grow(2 << 20)
	p, err = openPool(meta, data, nil)
	must(t, err)
	check(t, meta)
	must(t, p.Close())
}

// TestConcurrent has everybody write one device while others are snapshotted
// and discarded.
func TestConcurrent(t *testing.T) {
	p, meta, _ := newPool(t, 2000, nil)
	const n = 4
	var wg sync.WaitGroup
	for w := range uint64(n) {
		must(t, p.Create(w+1, w+1))
	}
	for w := range uint64(n) {
		wg.Add(1)
		go func() {
			defer wg.Done()
			d, err := p.Device(w+1, volSize, "t", false)
			if err != nil {
				t.Error(err)
				return
			}
			r := rand.New(rand.NewPCG(w, 1))
			model := make([]byte, volSize)
			buf := make([]byte, 8192)
			for i := range 200 {
				off := r.IntN((volSize-8192)/512) * 512
				for j := range buf {
					buf[j] = byte(r.Uint32())
				}
				switch r.IntN(8) {
				case 0:
					clear(buf)
					err = d.Discard(int64(off), 8192)
				case 1:
					err = d.Flush()
					continue
				case 2:
					err = p.Snapshot(100+w*1000+uint64(i), w+1, 1)
					continue
				default:
					_, err = d.WriteAt(buf, int64(off))
				}
				if err != nil {
					t.Error(err)
					return
				}
				copy(model[off:], buf)
			}
			got := make([]byte, volSize)
			if _, err := d.ReadAt(got, 0); err != nil || !bytes.Equal(got, model) {
				t.Errorf("device %d differs: %v", w+1, err)
			}
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		}()
	}
	wg.Wait()
	must(t, p.Close())
	check(t, meta)
}

// TestOldLease: a block that is freed under an open lease is not given to
// anybody else before the lease ends.
func TestOldLease(t *testing.T) {
	p, _, _ := newPool(t, 2, nil)
	must(t, p.Create(1, 1))
	d, err := p.Device(1, 100*chunk, "t", false)
	must(t, err)
	b := bytes.Repeat([]byte{1}, chunk)
	for i := range 2 {
		_, err = d.WriteAt(b, int64(i)*chunk)
		must(t, err)
	}
	var l blockdev.Lease
	must(t, d.LeaseRead(&l, 0, chunk, blockdev.Wait))
	must(t, d.Discard(0, chunk))
	must(t, p.Commit())
	if _, err := d.WriteAt(b, 5*chunk); !errors.Is(err, blockdev.ErrNoSpace) {
		t.Fatal("a block was reused under a lease:", err)
	}
	l.Release()
	_, err = d.WriteAt(b, 5*chunk)
	must(t, err)
}

func TestDamage(t *testing.T) {
	w := newWorld(t, 64)
	w.create()
	w.write(rand.New(rand.NewPCG(1, 2)), w.vols[0])
	w.snapshot(w.vols[0])
	for _, v := range w.vols {
		must(t, v.dev.Close())
	}
	must(t, w.p.Close())
	for blk := range int64(20) {
		m := w.meta.Clone()
		b := make([]byte, 512)
		m.ReadAt(b, blk*blockSize)
		b[100] ^= 1
		m.WriteAt(b, blk*blockSize)
		p, err := openPool(m, w.data.Clone(), nil)
		if err != nil {
			if !errors.Is(err, ErrCorrupt) {
				t.Errorf("block %d: %v", blk, err)
			}
			continue
		}
		for _, v := range w.vols {
			d, err := p.Device(v.id, volSize, "t", false)
			if err != nil {
				continue
			}
			got := make([]byte, volSize)
			if _, err := d.ReadAt(got, 0); err == nil && !bytes.Equal(got, v.model) {
				t.Errorf("block %d: damaged metadata gave wrong data", blk)
			}
		}
	}
}

func TestChecksum(t *testing.T) {
	// CRC32C of "123456789" is 0xe3069283; without inversion 0x1cf96d7c.
	if got := checksum([]byte("....123456789"), 0); got != 0x1cf96d7c {
		t.Fatalf("%#x", got)
	}
}

// FuzzNode feeds hostile nodes to every reader of a tree.
func FuzzNode(f *testing.F) {
	n := make(node, blockSize)
	n.init(flagLeaf, 8)
	n.insert(0, 5, u64(1<<24))
	f.Add([]byte(n[:200]))
	n.init(flagInternal, 8)
	n.insert(0, 5, u64(1))
	f.Add([]byte(n[:200]))
	f.Fuzz(func(t *testing.T, b []byte) {
		dev := lvmtest.New(8 * blockSize)
		p := &Pool{t: newBlocks(dev)}
		p.t.sm = newCounts(8)
		tr := tree{t: p.t, valueSize: 8}
		for i := range uint64(8) {
			blk := make([]byte, blockSize)
			copy(blk, b)
			le.PutUint64(blk[8:], i)
			le.PutUint32(blk, checksum(blk, xorNode))
			dev.WriteAt(blk, int64(i)*blockSize)
			p.t.sm.set(i, 1)
		}
		tr.lookup(1, 7)
		n := 0
		tr.walk(1, 0, func(uint64, []byte) bool { n++; return n < 10000 })
		if c, err := newCursor(&tr, 1); err == nil {
			d, _ := newCursor(&tr, 2)
			if d != nil {
				k := 0
				for k < 1000 {
					e, ok := c.peek()
					if !ok {
						break
					}
					if e.height > 0 {
						if c.descend() != nil {
							break
						}
					} else {
						c.skip()
					}
					k++
				}
			}
		}
	})
}

func FuzzSuper(f *testing.F) {
	f.Add((&super{dataBlock: 128}).encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < blockSize {
			return
		}
		b = bytes.Clone(b[:blockSize])
		le.PutUint32(b, checksum(b, xorSuper))
		s, err := parseSuper(b)
		if err != nil {
			return
		}
		if again, err := parseSuper(s.encode()); err != nil || *again != *s {
			t.Fatal(err)
		}
	})
}

func BenchmarkRewrite(b *testing.B) {
	meta, err := mem.Open(mem.Config{Size: 16 << 20})
	must(b, err)
	defer meta.Close()
	data, err := mem.Open(mem.Config{Size: 256 << 20})
	must(b, err)
	defer data.Close()
	p, err := Open(Config{Meta: meta, Data: data, ChunkSize: chunk})
	must(b, err)
	must(b, p.Create(1, 1))
	d, err := p.Device(1, 128<<20, "t", false)
	must(b, err)
	buf := make([]byte, 4096)
	for i := range int64(2048) {
		_, err := d.WriteAt(buf, i*chunk)
		must(b, err)
	}
	var l blockdev.Lease
	b.SetBytes(4096)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		must(b, d.LeaseWrite(&l, int64(i%32768)*4096, 4096, blockdev.Wait))
		must(b, l.Commit(false))
		l.Release()
	}
}

// BenchmarkDiff is a thin volume of 1 TiB of which 1 % has changed since its
// snapshot, in blocks of 64 KiB.
func BenchmarkDiff(b *testing.B) {
	if testing.Short() {
		b.Skip("writing the mappings of 1 TiB takes a minute")
	}
	meta, err := mem.Open(mem.Config{Size: 2 << 30})
	must(b, err)
	defer meta.Close()
	const blocks = 1 << 40 / chunk
	p, err := Open(Config{Meta: meta, Data: lvmtest.New(2 << 40).Quiet(), ChunkSize: chunk})
	must(b, err)
	must(b, p.Create(1, 1))
	d, err := p.Device(1, 1<<40, "t", false)
	must(b, err)
	set := func(vb uint64) {
		p.mu.Lock()
		defer p.mu.Unlock()
		must(b, p.roomLocked(0))
		n, _, err := p.allocLocked()
		must(b, err)
		must(b, d.setLocked(vb, n))
	}
	for vb := range uint64(blocks) {
		set(vb)
	}
	must(b, p.Snapshot(2, 1, 2))
	r := rand.New(rand.NewPCG(1, 1))
	for range blocks / 100 {
		set(uint64(r.IntN(blocks)))
	}
	must(b, p.Commit())
	b.ResetTimer()
	for b.Loop() {
		p.t.mu.Lock()
		p.t.cache = map[uint64]*block{} // from the device each time
		p.t.mu.Unlock()
		cs, err := p.Diff(2, 1)
		must(b, err)
		b.ReportMetric(float64(len(cs)), "ranges")
	}
}

// TestOnChange: whoever follows the pool sees every level that lasts, and calls
// do not overlap.
func TestOnChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _, data := newPool(t, 8, nil)
		must(t, p.Create(1, 1))
		d, err := p.Device(1, 100*chunk, "t", false)
		must(t, err)
		var in, calls atomic.Int32
		var used, total atomic.Uint64
		cancel := p.OnChange(func() {
			if in.Add(1) != 1 {
				t.Error("two calls at once")
			}
			u := p.Usage()
			used.Store(u.DataUsed)
			total.Store(u.DataBlocks)
			calls.Add(1)
			in.Add(-1)
		})
		is := func(what string, u, n uint64) {
			t.Helper()
			synctest.Wait()
			if used.Load() != u || total.Load() != n || calls.Swap(0) == 0 {
				t.Errorf("%s: %d of %d were seen, not %d of %d", what, used.Load(), total.Load(), u, n)
			}
		}
		var wg sync.WaitGroup
		for i := range int64(5) {
			wg.Go(func() {
				if _, err := d.WriteAt(make([]byte, 512), i*chunk); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		is("five writes", 5, 8)
		must(t, d.Discard(0, 2*chunk))
		is("a discard", 3, 8)
		data.Grow(10 * chunk)
		must(t, p.Grow())
		is("growth", 3, 10)
		must(t, d.Close())
		must(t, p.Delete(1, 2))
		is("deletion", 0, 10)
		cancel()
		must(t, p.Create(2, 3))
		d, err = p.Device(2, chunk, "t", false)
		must(t, err)
		_, err = d.WriteAt(make([]byte, 512), 0)
		must(t, err)
		synctest.Wait()
		if calls.Load() != 0 {
			t.Error("called after cancel")
		}
		must(t, d.Close())
		must(t, p.Close())
	})
}
