package scsi

import (
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"golang.org/x/sys/unix"

	"softiser/internal/spc"

	"softiser/blockdev"
	"softiser/blockdev/faulty"
	"softiser/blockdev/file"
)

// lentVolume notes which bytes read leases were asked for.
type lentVolume struct {
	blockdev.Device
	resident bool
	size     int64 // 0: the device's
	lent     atomic.Int64
	wait     chan struct{} // nil: nobody waits
}

func (v *lentVolume) Info() blockdev.Info {
	i := v.Device.Info()
	i.Resident = v.resident
	if v.size != 0 {
		i.Size = v.size
	}
	return i
}

func (v *lentVolume) LeaseRead(l *blockdev.Lease, off int64, n int, m blockdev.Mode) error {
	if v.wait != nil {
		<-v.wait
	}
	v.lent.Add(int64(n))
	if v.size != 0 {
		off = 0
	}
	return v.Device.LeaseRead(l, off, n, m)
}

func TestPrefetch(t *testing.T) {
	const blocks = 8 << 20 / 512
	for _, resident := range []bool{false, true} {
		v := &lentVolume{Device: newVolume(t, 8<<20, 512), resident: resident}
		r := newRig(t, Config{}, LUConfig{Volume: v})
		want := spc.StatusGood
		if resident {
			want = spc.StatusConditionMet
		}
		fetched := func(cdb []byte, n int64) {
			t.Helper()
			v.lent.Store(0)
			r.do(cdb, nil, 0).is(want)
			if got := v.lent.Load(); got != n {
				t.Errorf("% x: %d bytes fetched, want %d", cdb, got, n)
			}
		}
		fetched(spc.AppendPrefetch(nil, 8, 16, false), 16*512)
		fetched(spc.AppendPrefetch(nil, 0, blocks, false), blocks*512)
		fetched(spc.AppendPrefetch(nil, 0, 0, false), blocks*512)
		fetched(spc.AppendPrefetch(nil, blocks-5, 0, false), 5*512)
		fetched(spc.AppendPrefetch(nil, blocks, 0, false), 0)
		fetched([]byte{0x90, 0, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 7, 0, 0}, 7*512)
		r.do(spc.AppendPrefetch(nil, blocks-1, 2, false), nil, 0).illegal(spc.ASCLBAOutOfRange)
	}
}

// TestPrefetchTooMuch: what one command brings in is bounded, and more than that
// does not fit.
func TestPrefetchTooMuch(t *testing.T) {
	v := &lentVolume{Device: newVolume(t, 8<<20, 512), resident: true, size: 1 << 30}
	r := newRig(t, Config{}, LUConfig{Volume: v})
	r.do(spc.AppendPrefetch(nil, 0, 0, false), nil, 0).good()
	if n := v.lent.Load(); n != maxPrefetch {
		t.Errorf("%d bytes fetched, want %d", n, maxPrefetch)
	}
	r.do(spc.AppendPrefetch(nil, 1, maxPrefetch/512, false), nil, 0).is(spc.StatusConditionMet)
	r.do(spc.AppendPrefetch(nil, 1, maxPrefetch/512+1, false), nil, 0).good()
}

// TestPrefetchBehind: with IMMED the status does not wait for the blocks, and no
// crowd of commands goes on behind it.
func TestPrefetchBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &lentVolume{Device: newVolume(t, 8<<20, 512), resident: true, wait: make(chan struct{})}
		r := newRig(t, Config{}, LUConfig{Volume: v})
		for range maxBehind {
			r.do(spc.AppendPrefetch(nil, 0, 8, true), nil, 0).is(spc.StatusConditionMet)
		}
		r.do(spc.AppendPrefetch(nil, 0, 8, true), nil, 0).good()
		close(v.wait)
		synctest.Wait()
		if n := v.lent.Load(); n != maxBehind*8*512 {
			t.Errorf("%d bytes fetched", n)
		}
		r.do(spc.AppendPrefetch(nil, 0, 8, true), nil, 0).is(spc.StatusConditionMet)
		r.close()
		r.nx = nil
	})
}

func TestPrefetchFails(t *testing.T) {
	bad := faulty.New(newVolume(t, 8<<20, 512), 1, faulty.Rule{Op: faulty.Read, Off: 4 << 20, Len: 512, Err: blockdev.ErrMedium})
	r := newRig(t, Config{}, LUConfig{Volume: bad})
	got := r.do(spc.AppendPrefetch(nil, 0, 0, false), nil, 0).sense(spc.KeyMedium, spc.ASCUnrecoveredRead)
	if !got.sd.InfoValid || got.sd.Info != 4<<20/512 {
		t.Errorf("%+v, want the first block of the piece that failed", got.sd)
	}
	r.do(spc.AppendPrefetch(nil, 0, 0, true), nil, 0).good() // told by the READ that needs it
}

// TestPrefetchOfFile: the pages of a file are in memory afterwards, which a READ
// that may not wait shows.
func TestPrefetchOfFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "disk.img")
	v, err := file.Open(file.Config{Path: name, Size: 4 << 20})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := v.WriteAt(fill(4<<20, 3), 0); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(v.Flush(), v.Close()); err != nil {
		t.Fatal(err)
	}
	if err := forget(name); err != nil {
		t.Fatal(err)
	}
	if v, err = file.Open(file.Config{Path: name}); err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	r := newRig(t, Config{}, LUConfig{Volume: v})
	var l blockdev.Lease
	if err := v.LeaseRead(&l, 1<<20, 4096, blockdev.NoWait); err == nil {
		l.Release()
		t.Log("the file is in memory all the time, as on tmpfs")
	}
	r.do(spc.AppendPrefetch(nil, 1<<20/512, 64, false), nil, 0).good()
	if err := v.LeaseRead(&l, 1<<20, 64*512, blockdev.NoWait); err != nil {
		t.Errorf("after PRE-FETCH: %v", err)
	}
	l.Release()
	r.close()
	r.nx = nil
}

// forget has the kernel drop what it has in memory of a file, as far as it can.
func forget(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
}
