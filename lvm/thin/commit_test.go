package thin

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"softiser/blockdev"
	"softiser/lvm/internal/lvmtest"
)

// slowDisk takes its time, and counts.
type slowDisk struct {
	*lvmtest.Disk
	reads, writes, zeroings, flushes atomic.Int32
	transfer, flush                  time.Duration
}

func (d *slowDisk) ReadAt(p []byte, off int64) (int, error) {
	d.reads.Add(1)
	time.Sleep(d.transfer) // none where no test says so
	return d.Disk.ReadAt(p, off)
}

func (d *slowDisk) WriteAt(p []byte, off int64) (int, error) {
	d.writes.Add(1)
	time.Sleep(d.transfer) // none where no test says so
	return d.Disk.WriteAt(p, off)
}

func (d *slowDisk) WriteZeroes(off, n int64, unmap bool) error {
	d.zeroings.Add(1)
	time.Sleep(d.transfer) // none where no test says so
	return d.Disk.WriteZeroes(off, n, unmap)
}

func (d *slowDisk) Flush() error {
	d.flushes.Add(1)
	time.Sleep(d.flush) // as above
	return d.Disk.Flush()
}

func (d *slowDisk) FlushRange(int64, int64) error { return d.Flush() }

func (d *slowDisk) counts() string {
	return fmt.Sprintf("%d reads, %d writes, %d zeroings, %d flushes", d.reads.Swap(0), d.writes.Swap(0), d.zeroings.Swap(0), d.flushes.Swap(0))
}

// slowPool has one device with so many chunks mapped.
func slowPool(t testing.TB, mapped int) (*Pool, *Device, *lvmtest.Disk, *slowDisk) {
	meta, disk := lvmtest.New(2<<20), lvmtest.New(256*chunk)
	data := &slowDisk{Disk: disk}
	p, err := Open(Config{Meta: meta, Data: data, ChunkSize: chunk, Zero: true, ErrorWhenFull: true})
	must(t, err)
	must(t, p.Create(1, 1))
	d, err := p.Device(1, 256*chunk, "t", false)
	must(t, err)
	if mapped > 0 {
		_, err = d.WriteAt(bytes.Repeat([]byte{1}, mapped*chunk), 0)
		must(t, err)
	}
	must(t, d.Flush())
	data.counts()
	return p, d, meta, data
}

// durable writes through a lease that is committed with FUA.
func durable(d *Device, off int64, n int, b byte) error {
	var l blockdev.Lease
	if err := d.LeaseWrite(&l, off, n, blockdev.Wait); err != nil {
		return err
	}
	defer l.Release()
	for _, s := range l.Segs {
		for i := range s {
			s[i] = b
		}
	}
	return l.Commit(true)
}

// TestProvisionTogether: sixteen durable first writes take as long as one: their
// blocks are filled at the same time and mapped by one commit.
func TestProvisionTogether(t *testing.T) {
	for _, shared := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			p, d, meta, data := slowPool(t, 32)
			first := 64
			want := "0 reads, 16 writes, 0 zeroings, 1 flushes"
			took := 11 * time.Millisecond
			if shared {
				must(t, p.Snapshot(2, 1, 2))
				first = 0
				want = "16 reads, 16 writes, 0 zeroings, 1 flushes"
				took = 12 * time.Millisecond
			}
			data.counts()
			data.transfer, data.flush = time.Millisecond, 10*time.Millisecond
			began, cuts := time.Now(), p.begun.Load()
			var wg sync.WaitGroup
			for i := range 16 {
				wg.Go(func() {
					if err := durable(d, int64(first+i)*chunk, 4096, 7); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			if d := time.Since(began); d != took {
				t.Errorf("shared %v: took %v, not %v", shared, d, took)
			}
			if got := data.counts(); got != want {
				t.Errorf("shared %v: %s; want %s", shared, got, want)
			}
			if n := p.begun.Load() - cuts; n != 1 {
				t.Errorf("shared %v: %d commits", shared, n)
			}
			data.transfer, data.flush = 0, 0
			must(t, d.Close())
			must(t, p.Close())
			check(t, meta)
		})
	}
}

// TestWholeBlocks: a write that covers a block reads and zeroes nothing, also
// when it comes in several buffers.
func TestWholeBlocks(t *testing.T) {
	// A pool that is cut up lends small buffers only.
	pool, err := blockdev.NewPool(blockdev.MaxBuffer)
	must(t, err)
	var held [][]byte
	for range blockdev.MaxBuffer / 4096 {
		held, err = pool.Get(held, 4096, blockdev.NoWait)
		must(t, err)
	}
	for i := range held {
		if i%2 == 0 && i < 64 {
			pool.Put(held[i : i+1])
		}
	}
	p, d, meta, data := slowPool(t, 8)
	p.cfg.Pool = pool
	must(t, p.Snapshot(2, 1, 2))
	data.counts()
	is := func(what, want string) {
		t.Helper()
		if got := data.counts(); got != want {
			t.Errorf("%s: %s; want %s", what, got, want)
		}
	}
	must(t, durable(d, 0, chunk, 2))
	is("a lease of 16 buffers over a shared block", "0 reads, 16 writes, 0 zeroings, 1 flushes")
	must(t, durable(d, 100*chunk, chunk, 3))
	is("a lease of 16 buffers over a new block", "0 reads, 16 writes, 0 zeroings, 1 flushes")
	b := bytes.Repeat([]byte{4}, 2*chunk)
	_, err = d.WriteAt(b, chunk)
	must(t, err)
	is("two shared blocks", "0 reads, 2 writes, 0 zeroings, 0 flushes")
	_, err = d.WriteAt(b, 102*chunk)
	must(t, err)
	is("two new blocks", "0 reads, 2 writes, 0 zeroings, 0 flushes")
	_, err = d.WriteAt(b[:chunk], 3*chunk+512)
	must(t, err)
	is("parts of two shared blocks", "2 reads, 2 writes, 0 zeroings, 0 flushes")
	_, err = d.WriteAt(b[:chunk], 105*chunk+512)
	must(t, err)
	is("parts of two new blocks", "0 reads, 2 writes, 0 zeroings, 0 flushes")
	_, err = d.WriteAt(b[:512], 105*chunk)
	must(t, err)
	is("a block of its own", "0 reads, 1 writes, 0 zeroings, 0 flushes")
	// What surrounds the parts is the old content, and zeroes.
	all := make([]byte, 256*chunk)
	_, err = d.ReadAt(all, 0)
	must(t, err)
	want := make([]byte, 256*chunk)
	set := func(off, n int, v byte) { copy(want[off:], bytes.Repeat([]byte{v}, n)) }
	set(0, 8*chunk, 1)
	set(0, chunk, 2)
	set(100*chunk, chunk, 3)
	set(chunk, 2*chunk, 4)
	set(102*chunk, 2*chunk, 4)
	set(3*chunk+512, chunk, 4)
	set(105*chunk, chunk+512, 4)
	if !bytes.Equal(all, want) {
		t.Error("the content is wrong")
	}
	for i := range held {
		if i%2 != 0 || i >= 64 {
			pool.Put(held[i : i+1])
		}
	}
	if pool.Out() != 0 {
		t.Errorf("%d bytes of staging memory are out", pool.Out())
	}
	must(t, d.Close())
	must(t, p.Close())
	check(t, meta)
}

// TestLargeBlocks: of a shared block that is larger than what is copied at once all is copied, but for
// what is written.
func TestLargeBlocks(t *testing.T) {
	const chunk = 4 * copySize
	p, _, _ := newPool(t, 64, func(c *Config) { c.ChunkSize = chunk })
	must(t, p.Create(1, 1))
	d, err := p.Device(1, chunk, "t", false)
	must(t, err)
	old := make([]byte, chunk)
	for i := range old {
		old[i] = byte(i/512)%251 + 1
	}
	_, err = d.WriteAt(old, 0)
	must(t, err)
	must(t, p.Snapshot(2, 1, 2))
	const at = copySize + 4096 // more than one copy lies before it, and more than two behind it
	_, err = d.WriteAt(make([]byte, 512), at)
	must(t, err)
	want := bytes.Clone(old)
	clear(want[at : at+512])
	s, err := p.Device(2, chunk, "s", false)
	must(t, err)
	got := make([]byte, chunk)
	for _, c := range []struct {
		d    *Device
		want []byte
	}{{d, want}, {s, old}} {
		_, err = c.d.ReadAt(got, 0)
		must(t, err)
		if !bytes.Equal(got, c.want) {
			t.Errorf("%s is wrong", c.d.name)
		}
		must(t, c.d.Close())
	}
	must(t, p.Close())
}

// TestLongTransaction: a transaction ends after so many changes, although nobody flushes and there is room.
func TestLongTransaction(t *testing.T) {
	p, _, _ := newPool(t, 4, nil)
	must(t, p.Create(1, 1))
	p.mu.Lock()
	defer p.mu.Unlock()
	p.changed, p.batch = true, 8192
	for _, want := range []uint64{0, 1, 0} {
		cuts := p.begun.Load()
		must(t, p.roomLocked(0))
		if got := p.begun.Load() - cuts; got != want {
			t.Errorf("%d commits, not %d; %d changes since", got, want, p.batch)
		}
	}
}

// heldDisk holds the flushes of the metadata.
type heldDisk struct {
	*lvmtest.Disk
	hold    atomic.Bool
	reached chan struct{}
	free    chan struct{}
}

func (d *heldDisk) Flush() error {
	if d.hold.Load() {
		d.reached <- struct{}{}
		<-d.free
	}
	return d.Disk.Flush()
}

// TestWorkWhileStored: while a transaction is stored, blocks are mapped, copied
// and freed in the next one, and nothing that the disk still refers to is used.
func TestWorkWhileStored(t *testing.T) {
	disk, data := lvmtest.New(2<<20), lvmtest.New(64*chunk)
	meta := &heldDisk{Disk: disk, reached: make(chan struct{}), free: make(chan struct{})}
	p, err := Open(Config{Meta: meta, Data: data, ChunkSize: chunk, Zero: true, ErrorWhenFull: true})
	must(t, err)
	must(t, p.Create(1, 1))
	d, err := p.Device(1, 256*chunk, "t", false)
	must(t, err)
	_, err = d.WriteAt(bytes.Repeat([]byte{1}, 8*chunk), 0)
	must(t, err)
	must(t, p.Snapshot(2, 1, 2))
	must(t, durable(d, 20*chunk, 4096, 2))

	meta.hold.Store(true)
	done := make(chan error)
	go func() { done <- durable(d, 21*chunk, 4096, 3) }()
	<-meta.reached // its blocks are written, the superblock is not
	for i := range int64(4) {
		_, err = d.WriteAt(bytes.Repeat([]byte{9}, 512), i*chunk) // breaks sharing
		must(t, err)
		_, err = d.WriteAt(bytes.Repeat([]byte{9}, 512), (30+i)*chunk)
		must(t, err)
	}
	must(t, d.WriteZeroes(20*chunk, chunk, true)) // unmaps what is durable
	second := make(chan error)
	go func() { second <- durable(d, 50*chunk, 4096, 4) }()
	got := make([]byte, 512)
	for off, want := range map[int64]byte{0: 9, 5 * chunk: 1, 20 * chunk: 0, 21 * chunk: 3, 33 * chunk: 9} {
		if _, err := d.ReadAt(got, off); err != nil || got[0] != want {
			t.Errorf("at %d: %d, %v; want %d", off/chunk, got[0], err, want)
		}
	}
	// A power cut now leaves the state before, or the one that is stored.
	for seed := range uint64(8) {
		r := rand.New(rand.NewPCG(seed, 1))
		m, dat := disk.Crash(r), data.Crash(r)
		check(t, m)
		q, err := openPool(m, dat, nil)
		must(t, err)
		e, err := q.Device(1, 256*chunk, "t", false)
		must(t, err)
		for off, want := range map[int64]byte{0: 1, 5 * chunk: 1, 20 * chunk: 2, 33 * chunk: 0} {
			if _, err := e.ReadAt(got, off); err != nil || got[0] != want {
				t.Errorf("after a cut, at %d: %d, %v; want %d", off/chunk, got[0], err, want)
			}
		}
		must(t, e.Close())
		must(t, q.Close())
	}
	meta.hold.Store(false)
	meta.free <- struct{}{}
	must(t, <-done)
	must(t, <-second)
	must(t, d.Close())
	must(t, p.Close())
	check(t, disk)
}

// shuffle lets others run in the middle of its calls.
type shuffle struct{ *lvmtest.Disk }

func (d shuffle) pause() {
	for range rand.IntN(4) {
		runtime.Gosched()
	}
}

func (d shuffle) ReadAt(p []byte, off int64) (int, error)  { d.pause(); return d.Disk.ReadAt(p, off) }
func (d shuffle) WriteAt(p []byte, off int64) (int, error) { d.pause(); return d.Disk.WriteAt(p, off) }
func (d shuffle) Flush() error                             { d.pause(); return d.Disk.Flush() }

// TestProvisionCrash cuts the power under eight writers of a volume that shares
// half of its blocks: what was acknowledged with FUA is there, the snapshot is
// what it was, and thin_check agrees.
func TestProvisionCrash(t *testing.T) {
	const blocks = 48
	for cut := 3; cut < 120; cut += 9 {
		meta, data := lvmtest.New(2<<20), lvmtest.New(256*chunk)
		p, err := Open(Config{Meta: shuffle{meta}, Data: shuffle{data}, ChunkSize: chunk, Zero: true, ErrorWhenFull: true})
		must(t, err)
		must(t, p.Create(1, 1))
		d, err := p.Device(1, blocks*chunk, "t", false)
		must(t, err)
		old := make([]byte, blocks*chunk)
		for i := range old[:blocks/2*chunk] {
			old[i] = byte(i/4096)%250 + 1
		}
		_, err = d.WriteAt(old[:blocks/2*chunk], 0)
		must(t, err)
		must(t, p.Snapshot(2, 1, 2))
		meta.Tie(data)
		meta.CutAfter(cut)
		// Each writer has blocks of its own: what it saw acknowledged, and what
		// may be there besides.
		const writers = 8
		var acked, maybe [blocks * chunk / 4096]byte
		for i := range acked {
			acked[i] = old[i*4096]
			maybe[i] = acked[i]
		}
		var wg sync.WaitGroup
		for w := range writers {
			wg.Go(func() {
				r := rand.New(rand.NewPCG(uint64(w), uint64(cut)))
				for range 200 {
					at := (r.IntN(blocks/writers)*writers+w)*chunk/4096 + r.IntN(chunk/4096)
					b := byte(251 + r.IntN(5))
					maybe[at] = b
					if durable(d, int64(at)*4096, 4096, b) != nil {
						return
					}
					acked[at] = b
				}
			})
		}
		wg.Wait()
		for seed := range uint64(2) {
			r := rand.New(rand.NewPCG(seed, uint64(cut)))
			m, dat := meta.Crash(r), data.Crash(r)
			check(t, m)
			q, err := openPool(m, dat, nil)
			must(t, err)
			e, err := q.Device(1, blocks*chunk, "t", false)
			must(t, err)
			s, err := q.Device(2, blocks*chunk, "s", false)
			must(t, err)
			got := make([]byte, blocks*chunk)
			_, err = e.ReadAt(got, 0)
			must(t, err)
			for i := range acked {
				page := got[i*4096 : (i+1)*4096]
				if acked[i] == maybe[i] && !bytes.Equal(page, bytes.Repeat(acked[i:i+1], 4096)) {
					t.Fatalf("cut %d seed %d: page %d is %d, %d was acknowledged", cut, seed, i, page[0], acked[i])
				}
			}
			_, err = s.ReadAt(got, 0)
			must(t, err)
			if !bytes.Equal(got, old) {
				t.Fatalf("cut %d seed %d: the snapshot changed", cut, seed)
			}
		}
	}
}
