package snap

import (
	"bytes"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

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
	_, err := OpenStore(disk, 4096) // formats it
	must(t, err)
	gate := make(chan struct{})
	base, cow := &countDisk{Disk: lvmtest.New(size), gate: gate}, &gateDisk{Disk: disk, gate: gate}
	base.left.Store(20)
	st, err := OpenStore(cow, 4096)
	must(t, err)
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
		set := NewSet(base, nil, nil)
		var snaps []*Snapshot
		for i, d := range []*lvmtest.Disk{a, b} {
			st, err := OpenStore(d, 4096<<i)
			must(t, err)
			snaps = append(snaps, set.Add("s", st, size))
		}
		origin := set.Origin()
		a.Tie(b, base)
		a.CutAfter(cut)
		var wg sync.WaitGroup
		for w := range uint64(4) {
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
