package snap

import (
	"bytes"
	"errors"
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

// gateDisk counts its flushes; the first waits until the gate is open.
type gateDisk struct {
	*lvmtest.Disk
	gate    chan struct{}
	flushes atomic.Int32
}

func (d *gateDisk) Flush() error { <-d.gate; d.flushes.Add(1); return d.Disk.Flush() }

// countDisk opens the gate when so many chunks have been read of it.
type countDisk struct {
	*lvmtest.Disk
	left atomic.Int32
	gate chan struct{}
}

func (d *countDisk) ReadAt(p []byte, off int64) (int, error) {
	if d.left.Add(-1) == 0 {
		close(d.gate)
	}
	return d.Disk.ReadAt(p, off)
}

// TestCopyOutsTogether: the writers that come while exceptions are recorded are
// served by one commit more, however many they are.
func TestCopyOutsTogether(t *testing.T) {
	disk := lvmtest.New(4 * size)
	st, err := OpenStore(disk, 4096) // flushes
	must(t, err)
	gate := make(chan struct{})
	base, cow := &countDisk{Disk: lvmtest.New(size), gate: gate}, &gateDisk{Disk: disk, gate: gate}
	base.left.Store(20)
	st.dev = cow
	set := NewSet(base, nil, nil)
	snap, origin := set.Add("s", st, size), set.Origin()
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			p := bytes.Repeat([]byte{byte(i + 1)}, 4096)
			if _, err := origin.WriteAt(p, int64(i%20)*4096); err != nil { // two of each chunk
				t.Error(err)
			}
		})
	}
	wg.Wait()
	// Each commit flushes the chunks, then the list.
	if n := cow.flushes.Load(); n > 4 {
		t.Errorf("40 first writes took %d flushes", n)
	}
	got := make([]byte, size)
	if _, err := snap.ReadAt(got, 0); err != nil || !bytes.Equal(got, make([]byte, size)) {
		t.Errorf("the snapshot has changed (%v)", err)
	}
	if u := snap.Usage(); u.Exceptions != 20 || len(st.pending) != 0 {
		t.Errorf("%+v, %d pending", u, len(st.pending))
	}
}

// shuffle lets others go first now and then, so that what is under way at the
// same time ends in any order.
type shuffle struct{ *lvmtest.Disk }

func (d shuffle) pause() {
	for range rand.IntN(20) {
		runtime.Gosched()
	}
}

func (d shuffle) ReadAt(p []byte, off int64) (int, error)  { d.pause(); return d.Disk.ReadAt(p, off) }
func (d shuffle) WriteAt(p []byte, off int64) (int, error) { d.pause(); return d.Disk.WriteAt(p, off) }
func (d shuffle) Flush() error                             { d.pause(); return d.Disk.Flush() }

// slowDisk takes its time, and counts.
type slowDisk struct {
	*lvmtest.Disk
	reads, writes, flushes atomic.Int32
	at                     atomic.Int32 // reads and writes under way
	most                   atomic.Int32 // of them at once
}

const transferTime, flushTime = time.Millisecond, 5 * time.Millisecond

func (d *slowDisk) wait(n *atomic.Int32) {
	n.Add(1)
	at := d.at.Add(1)
	for m := d.most.Load(); at > m && !d.most.CompareAndSwap(m, at); m = d.most.Load() {
	}
	time.Sleep(transferTime) // a disk that takes its time
	d.at.Add(-1)
}

func (d *slowDisk) ReadAt(p []byte, off int64) (int, error) {
	d.wait(&d.reads)
	return d.Disk.ReadAt(p, off)
}

func (d *slowDisk) WriteAt(p []byte, off int64) (int, error) {
	d.wait(&d.writes)
	return d.Disk.WriteAt(p, off)
}

func (d *slowDisk) Flush() error {
	d.flushes.Add(1)
	time.Sleep(flushTime) // as above
	return d.Disk.Flush()
}

// TestCopyOutsOverlap: first writes to different chunks take as long as one, up
// to so many copiers, however many snapshots there are; and what they cost in
// commands to the store is counted.
func TestCopyOutsOverlap(t *testing.T) {
	// Chunk read, chunk written, chunks flushed, list written and flushed, and
	// the write itself.
	const one = 4*transferTime + 2*flushTime
	for _, c := range []struct {
		writers, snaps  int
		chunks          int // of each write
		took            time.Duration
		writes, flushes int32 // of each store
	}{
		{1, 1, 1, one, 1 + 1, 2},
		{copiers, 1, 1, one, copiers + 1, 2},
		{copiers, 3, 1, one + 2*2*transferTime, copiers + 1, 2}, // one writer's copies come one after the other
		{3 * copiers, 1, 1, one + 2*2*transferTime, 3*copiers + 1, 2},
		{copiers, 1, 8, one, copiers + 1, 2}, // neighbours are copied at once
	} {
		t.Run(fmt.Sprintf("%d writers of %d chunks, %d snapshots", c.writers, c.chunks, c.snaps), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const size = 4 << 20
				base := &slowDisk{Disk: lvmtest.New(size)}
				set := NewSet(base, nil, nil)
				var cows []*slowDisk
				var snaps []*Snapshot
				for range c.snaps {
					disk := lvmtest.New(2 * size)
					st, err := OpenStore(disk, 4096) // writes and flushes
					must(t, err)
					cow := &slowDisk{Disk: disk}
					st.dev = cow
					cows, snaps = append(cows, cow), append(snaps, set.Add("s", st, size))
				}
				start, origin := time.Now(), set.Origin()
				var wg sync.WaitGroup
				for i := range c.writers {
					wg.Go(func() {
						if _, err := origin.WriteAt(bytes.Repeat([]byte{7}, 4096*c.chunks), int64(i*c.chunks)*4096); err != nil {
							t.Error(err)
						}
					})
				}
				wg.Wait()
				if took := time.Since(start); took != c.took {
					t.Errorf("took %v, not %v", took, c.took)
				}
				for i, cow := range cows {
					if w, f := cow.writes.Load(), cow.flushes.Load(); w != c.writes || f != c.flushes {
						t.Errorf("store %d: %d writes and %d flushes, not %d and %d", i, w, f, c.writes, c.flushes)
					}
					if u := snaps[i].Usage(); u.Exceptions != c.writers*c.chunks || len(snaps[i].st.pending) != 0 {
						t.Errorf("store %d: %d exceptions, %d pending", i, u.Exceptions, len(snaps[i].st.pending))
					}
				}
				if m := cows[0].most.Load(); m > copiers || int(m) < min(c.writers, copiers) && c.snaps == 1 {
					t.Errorf("%d copies at once", m)
				}
				if len(set.copying) != 0 {
					t.Errorf("%d claims are left", len(set.copying))
				}
				got := make([]byte, size)
				for _, n := range snaps {
					if _, err := n.ReadAt(got, 0); err != nil || !bytes.Equal(got, make([]byte, size)) {
						t.Errorf("a snapshot has changed (%v)", err)
					}
				}
			})
		})
	}
}

// TestCopyOutsFail: a chunk that cannot be read, while others are copied, makes
// the snapshot invalid; every write goes on.
func TestCopyOutsFail(t *testing.T) {
	base := &badDisk{Disk: lvmtest.New(size), at: 5 * 4096}
	st, err := OpenStore(lvmtest.New(4*size), 4096)
	must(t, err)
	var notices atomic.Int32
	set := NewSet(base, nil, func(string) { notices.Add(1) })
	snap, origin := set.Add("s", st, size), set.Origin()
	var wg sync.WaitGroup
	for i := range 30 {
		wg.Go(func() {
			if _, err := origin.WriteAt(bytes.Repeat([]byte{7}, 4096), int64(i%15)*4096); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if _, err := snap.ReadAt(make([]byte, 4096), 0); !errors.Is(err, ErrInvalid) || notices.Load() != 1 {
		t.Errorf("%v, %d notices", err, notices.Load())
	}
	if len(st.pending)+len(set.copying) != 0 {
		t.Errorf("%d pending, %d claims", len(st.pending), len(set.copying))
	}
}

// badDisk has a sector that cannot be read.
type badDisk struct {
	*lvmtest.Disk
	at int64
}

func (d *badDisk) ReadAt(p []byte, off int64) (int, error) {
	if off <= d.at && d.at < off+int64(len(p)) {
		return 0, blockdev.ErrMedium
	}
	return d.Disk.ReadAt(p, off)
}

// TestCopyOutsCrash cuts the power under concurrent writers of an origin with
// two snapshots, one of which is written too.
func TestCopyOutsCrash(t *testing.T) {
	for cut := 2; cut < 400; cut += 7 {
		base, a, b := lvmtest.New(size), lvmtest.New(4*size), lvmtest.New(4*size)
		old := make([]byte, size)
		for i := range old {
			old[i] = byte(i / 512)
		}
		_, err := base.WriteAt(old, 0)
		must(t, err)
		must(t, base.Flush())
		set := NewSet(shuffle{base}, nil, nil)
		var snaps []*Snapshot
		for i, d := range []*lvmtest.Disk{a, b} {
			st, err := OpenStore(shuffle{d}, 4096<<i)
			must(t, err)
			snaps = append(snaps, set.Add("s", st, size))
		}
		origin := set.Origin()
		a.Tie(b, base)
		a.CutAfter(cut)
		var wg sync.WaitGroup
		for w := range uint64(8) {
			wg.Go(func() {
				r := rand.New(rand.NewPCG(w, uint64(cut)))
				p := bytes.Repeat([]byte{0xee}, 8192)
				var dev blockdev.Device = origin
				if w == 3 {
					dev = snaps[1]
				}
				for range 30 {
					if _, err := dev.WriteAt(p, int64(r.IntN(size/4096-1))*4096); err != nil {
						return
					}
				}
			})
		}
		wg.Wait()
		r := rand.New(rand.NewPCG(uint64(cut), 9))
		cb, ca := base.Crash(r), a.Crash(r)
		st, err := OpenStore(ca, 4096)
		must(t, err)
		s := NewSet(cb, nil, nil).Add("s", st, size)
		got := make([]byte, size)
		if _, err := s.ReadAt(got, 0); err != nil {
			continue // the store could not be written and is marked so
		}
		if !bytes.Equal(got, old) {
			t.Fatalf("cut %d: the snapshot changed", cut)
		}
	}
}

// heldReads is a disk whose reads wait for the gate, and are counted.
type heldReads struct {
	*lvmtest.Disk
	reads atomic.Int32
	gate  chan struct{}
}

func (d *heldReads) ReadAt(p []byte, off int64) (int, error) {
	d.reads.Add(1)
	<-d.gate
	return d.Disk.ReadAt(p, off)
}

// TestCopiedOnce: a writer that meets chunks which another one is copying waits for that, and copies
// only what is left.
func TestCopiedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := &heldReads{Disk: lvmtest.New(size), gate: make(chan struct{})}
		st, err := OpenStore(lvmtest.New(4*size), 4096)
		must(t, err)
		set := NewSet(base, nil, nil)
		snap, origin := set.Add("s", st, size), set.Origin()
		var wg sync.WaitGroup
		for i := range 3 {
			wg.Go(func() {
				if _, err := origin.WriteAt(bytes.Repeat([]byte{7}, 8192), int64(i%2)*4096); err != nil { // chunks 0 and 1, 1 and 2, 0 and 1
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		if n := base.reads.Load(); n != 2 {
			t.Errorf("%d reads of three chunks by three writers", n)
		}
		close(base.gate)
		wg.Wait()
		if u := snap.Usage(); u.Exceptions != 3 || u.Used != (firstChunk+3)*4096 {
			t.Errorf("%+v", u)
		}
		got := make([]byte, size)
		if _, err := snap.ReadAt(got, 0); err != nil || !bytes.Equal(got, make([]byte, size)) {
			t.Errorf("the snapshot has changed (%v)", err)
		}
	})
}
