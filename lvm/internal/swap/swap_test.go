package swap

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"softiser/blockdev"
	"softiser/blockdev/blockdevtest"
	"softiser/blockdev/mem"
)

func newMem(t testing.TB, size int64, pool *blockdev.Pool) *mem.Device {
	t.Helper()
	d, err := mem.Open(mem.Config{Size: size, Pool: pool})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestConformance(t *testing.T) {
	blockdevtest.Run(t, blockdevtest.Backend{Direct: true, Open: func(t *testing.T, size int64, pool *blockdev.Pool) blockdev.Device {
		return New(newMem(t, size, pool), pool)
	}})
}

// TestFreeze: an open direct write lease delays the freeze, not other writers.
func TestFreeze(t *testing.T) {
	m := newMem(t, 1<<20, nil)
	d := New(m, nil)
	defer d.Close()
	var held blockdev.Lease
	if err := d.LeaseWrite(&held, 0, 4096, blockdev.Wait); err != nil || !held.Direct {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	if _, err := d.Freeze(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	type res struct {
		f   *Frozen
		err error
	}
	done := make(chan res)
	go func() {
		f, err := d.Freeze(context.Background())
		done <- res{f, err}
	}()
	// The freeze is pending as soon as new write leases are staged.
	var l blockdev.Lease
	for {
		if err := d.LeaseWrite(&l, 8192, 4096, blockdev.Wait); err != nil {
			t.Fatal(err)
		}
		if !l.Direct {
			break
		}
		l.Release()
	}
	if _, err := d.WriteAt(make([]byte, 512), 65536); err != nil {
		t.Fatal("a write failed while the freeze is pending:", err)
	}
	held.Release()
	r := <-done
	if r.err != nil {
		t.Fatal(r.err)
	}
	for i := range l.Segs[0] {
		l.Segs[0][i] = 7
	}
	committed := make(chan error)
	go func() { committed <- l.Commit(true) }()
	got := make([]byte, 4096)
	if _, err := d.ReadAt(got, 8192); err != nil || !bytes.Equal(got, make([]byte, 4096)) {
		t.Fatal("content changed while frozen", err)
	}
	m2 := newMem(t, 2<<20, nil)
	var size int64
	stop := d.OnResize(func(i blockdev.Info) { size = i.Size })
	defer stop()
	r.f.Thaw(m2)
	if err := r.f.Drain(context.Background()); err != nil {
		t.Fatal(err)
	}
	m.Close()
	if err := <-committed; err != nil {
		t.Fatal(err)
	}
	l.Release()
	if size != 2<<20 {
		t.Errorf("resize callback said %d", size)
	}
	if _, err := d.ReadAt(got, 8192); err != nil || got[0] != 7 {
		t.Fatal("the staged write did not reach the new device", err)
	}
}

// TestDrain: a read lease keeps the old device alive past the thaw.
func TestDrain(t *testing.T) {
	a, b := newMem(t, 1<<20, nil), newMem(t, 1<<20, nil)
	defer a.Close()
	d := New(a, nil)
	defer d.Close()
	f, err := d.Freeze(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	var l blockdev.Lease
	if err := d.LeaseRead(&l, 0, 512, blockdev.NoWait); err != nil {
		t.Fatal(err)
	}
	f.Thaw(b)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := f.Drain(ctx); err == nil {
		t.Fatal("drained under an open lease")
	}
	l.Release()
	if err := f.Drain(context.Background()); err != nil {
		t.Fatal(err)
	}
}

// TestSwitchUnderLoad switches to and fro while everybody reads and writes.
func TestSwitchUnderLoad(t *testing.T) {
	a := newMem(t, 1<<20, nil)
	d := New(a, nil)
	defer d.Close()
	var stop atomic.Bool
	var wg sync.WaitGroup
	for w := 0; w < 4; w++ {
		wg.Add(1)
		go func() {
			defer wg.Done()
			var l blockdev.Lease
			off := int64(w) * 65536
			p := make([]byte, 4096)
			for i := byte(1); !stop.Load(); i++ {
				if err := d.LeaseWrite(&l, off, 4096, blockdev.Wait); err != nil {
					t.Error(err)
					return
				}
				for _, s := range l.Segs {
					for j := range s {
						s[j] = i
					}
				}
				if err := l.Commit(false); err != nil {
					t.Error(err)
				}
				l.Release()
				if _, err := d.ReadAt(p, off); err != nil || p[0] != i || p[4095] != i {
					t.Errorf("read %d, want %d: %v", p[0], i, err)
					return
				}
			}
		}()
	}
	for i := 0; i < 200; i++ {
		f, err := d.Freeze(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		f.Thaw(nil)
	}
	stop.Store(true)
	wg.Wait()
}

// flushing counts what is flushed.
type flushing struct {
	*mem.Device
	ranges []int64
}

func (f *flushing) FlushRange(off, n int64) error {
	f.ranges = append(f.ranges, off, n)
	return f.Device.FlushRange(off, n)
}

// TestStagedWritesAreDurable: a write that is to be durable is so although its lease was
// staged for a freeze.
func TestStagedWritesAreDurable(t *testing.T) {
	m := &flushing{Device: newMem(t, 1<<20, nil)}
	d := New(m, nil)
	defer d.Close()
	var read, l blockdev.Lease
	if err := d.LeaseRead(&read, 0, 512, blockdev.Wait); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	frozen := make(chan error)
	go func() { _, err := d.Freeze(ctx); frozen <- err }()
	for l.Owner != blockdev.Lender(&d.stage) { // the freeze is pending
		if l.Owner != nil {
			l.Release()
		}
		if err := d.LeaseWrite(&l, 8192, 4096, blockdev.Wait); err != nil {
			t.Fatal(err)
		}
	}
	cancel()
	if err := <-frozen; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	for _, fua := range []bool{false, true} {
		if err := l.Commit(fua); err != nil {
			t.Fatal(err)
		}
		if got := len(m.ranges) > 0; got != fua {
			t.Errorf("fua %v: flushed %v", fua, m.ranges)
		}
	}
	if len(m.ranges) != 2 || m.ranges[0] > 8192 || m.ranges[0]+m.ranges[1] < 8192+4096 {
		t.Errorf("flushed %v", m.ranges)
	}
	l.Release()
	read.Release()
}
