package backing

import (
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"softiser/blockdev"
)

// stagedWrite commits a write lease that is not direct.
func stagedWrite(t *testing.T, v *Volume, fua bool) error {
	t.Helper()
	var l, other blockdev.Lease
	if err := v.LeaseRead(&other, 0, 4096, blockdev.Wait); err != nil {
		t.Fatal(err)
	}
	err := v.LeaseWrite(&l, 0, 4096, blockdev.Wait)
	other.Release()
	if err != nil || l.Direct {
		t.Fatalf("lease: direct %v, %v", l.Direct, err)
	}
	defer l.Release()
	return l.Commit(fua)
}

// TestFailedSyncPoisons: after one failed sync, whatever its error, no sync succeeds
// until the volume is opened anew. Plain reads and writes go on.
func TestFailedSyncPoisons(t *testing.T) {
	for op, trigger := range map[string]func(*testing.T, *Volume) error{
		"flush":         func(_ *testing.T, v *Volume) error { return v.Flush() },
		"flush a range": func(_ *testing.T, v *Volume) error { return v.FlushRange(0, 4096) },
		"staged FUA":    func(t *testing.T, v *Volume) error { return stagedWrite(t, v, true) },
		"erase":         func(_ *testing.T, v *Volume) error { return v.Erase(0, 4096) },
	} {
		for _, e := range []unix.Errno{unix.EIO, unix.ENOSPC, unix.EDQUOT, unix.ESTALE, unix.ETIMEDOUT} {
			t.Run(op+"/"+e.Error(), func(t *testing.T) {
				k := linux
				k.fdatasync = func(int) error { return e }
				k.msync = func([]byte, int) error { return e }
				v, _ := openFile(t, 1<<20, k, nil)
				if err := trigger(t, v); !errors.Is(err, e) {
					t.Fatalf("first failure = %v, want %v", err, e)
				}
				v.sys = linux // the disk is well again; the lost pages are not
				if err := trigger(t, v); !errors.Is(err, blockdev.ErrPoisoned) || !errors.Is(err, e) || errors.Is(err, blockdev.ErrNoSpace) {
					t.Errorf("again = %v, want ErrPoisoned by %v", err, e)
				}
				if err := v.Flush(); !errors.Is(err, blockdev.ErrPoisoned) {
					t.Errorf("Flush = %v, want ErrPoisoned", err)
				}
				if err := v.FlushRange(0, 4096); !errors.Is(err, blockdev.ErrPoisoned) {
					t.Errorf("FlushRange = %v, want ErrPoisoned", err)
				}
				if _, err := v.WriteAt(make([]byte, 4096), 0); err != nil {
					t.Errorf("WriteAt = %v", err)
				}
			})
		}
	}
	t.Run("write-through", func(t *testing.T) {
		k := linux
		k.msync = func([]byte, int) error { return unix.ENOSPC }
		v, _ := openFile(t, 1<<20, k, func(c *Config) { c.WriteThrough = true })
		if _, err := v.WriteAt(make([]byte, 512), 0); !errors.Is(err, unix.ENOSPC) {
			t.Fatal(err)
		}
		v.sys = linux
		_, err := v.WriteAt(make([]byte, 512), 0)
		for op, err := range map[string]error{"WriteAt": err, "WriteZeroes": v.WriteZeroes(0, 4096, true), "Discard": v.Discard(0, 4096)} {
			if !errors.Is(err, blockdev.ErrPoisoned) {
				t.Errorf("%s = %v, want ErrPoisoned", op, err)
			}
		}
	})
}

// TestFullWriteDoesNotPoison: a disk that has no room for a write has lost nothing.
func TestFullWriteDoesNotPoison(t *testing.T) {
	for _, e := range []unix.Errno{unix.ENOSPC, unix.EDQUOT, unix.EIO} {
		k := linux
		k.pwritev = func(int, [][]byte, int64) (int, error) { return 0, e }
		v, _ := openFile(t, 1<<20, k, nil)
		if _, err := v.WriteAt(make([]byte, 512), 0); !errors.Is(err, e) {
			t.Fatalf("WriteAt = %v, want %v", err, e)
		}
		if err := stagedWrite(t, v, true); !errors.Is(err, e) {
			t.Fatalf("FUA = %v, want %v", err, e)
		}
		if err := v.Flush(); err != nil {
			t.Errorf("Flush after %v = %v", e, err)
		}
		v.sys = linux
		if err := stagedWrite(t, v, true); err != nil {
			t.Errorf("FUA after %v = %v", e, err)
		}
	}
}

// tape is a kernel whose syncs end when the test says so. fdatasync stands for the
// one sync, msync for the other.
type tape struct {
	begun       chan string
	flush, sync chan error
}

func newTape() *tape {
	return &tape{make(chan string, 8), make(chan error), make(chan error)}
}

func (p *tape) kernel() kernel {
	k := linux
	k.fdatasync = func(int) error { p.begun <- "flush"; return <-p.flush }
	k.msync = func([]byte, int) error { p.begun <- "sync"; return <-p.sync }
	return k
}

// alone spares a volume the watcher, whose clock would go on in a bubble where
// everybody else waits for ever.
func alone(c *Config) { c.StoreSize = nil }

// TestOverlappingSyncs: the kernel tells one of several overlapping syncs of an
// error, and not always the one whose data it was. None of them succeeds.
func TestOverlappingSyncs(t *testing.T) {
	for _, c := range []struct{ name, first string }{
		{"the one that succeeds began first", "sync"},
		{"the one that fails began first", "flush"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newTape()
				v, _ := openFile(t, 1<<20, p.kernel(), alone)
				flush, sync := make(chan error, 1), make(chan error, 1)
				goFlush := func() { go func() { flush <- v.Flush() }(); <-p.begun }
				goSync := func() { go func() { sync <- v.FlushRange(0, 4096) }(); <-p.begun }
				if c.first == "flush" {
					goFlush()
					goSync()
				} else {
					goSync()
					goFlush()
				}
				p.sync <- nil
				synctest.Wait()
				select {
				case err := <-sync:
					t.Errorf("the sync ended with %v while another was under way that may have taken its error", err)
				default:
				}
				p.flush <- unix.EIO
				if err := <-flush; !errors.Is(err, unix.EIO) {
					t.Errorf("the flush ended with %v", err)
				}
				if err := <-sync; !errors.Is(err, blockdev.ErrPoisoned) {
					t.Errorf("the sync ended with %v, want ErrPoisoned", err)
				}
			})
		})
	}
	t.Run("both succeed", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p := newTape()
			v, _ := openFile(t, 1<<20, p.kernel(), alone)
			done := make(chan error, 2)
			go func() { done <- v.Flush() }()
			<-p.begun
			go func() { done <- v.FlushRange(0, 4096) }()
			<-p.begun
			p.sync <- nil
			p.flush <- nil
			for range 2 {
				if err := <-done; err != nil {
					t.Error(err)
				}
			}
		})
	})
}

// TestSyncsThatBeginLaterAreNotWaitedFor: what began when a sync had ended cannot have
// taken its error. Without that, a busy volume's syncs would wait for one another
// for ever.
func TestSyncsThatBeginLaterAreNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newTape()
		v, _ := openFile(t, 1<<20, p.kernel(), alone)
		first, flush, later := make(chan error, 1), make(chan error, 1), make(chan error, 1)
		go func() { first <- v.FlushRange(0, 4096) }()
		<-p.begun
		go func() { flush <- v.Flush() }()
		<-p.begun
		p.sync <- nil // the first has ended, and waits for the flush
		synctest.Wait()
		go func() { later <- v.FlushRange(0, 4096) }()
		<-p.begun
		p.flush <- nil
		if err := <-first; err != nil {
			t.Error(err)
		}
		// The flush has, and waits for the later one, which began before it ended.
		synctest.Wait()
		select {
		case err := <-flush:
			t.Errorf("the flush ended with %v", err)
		default:
		}
		p.sync <- nil
		for _, c := range []chan error{later, flush} {
			if err := <-c; err != nil {
				t.Error(err)
			}
		}
	})
}

// TestAStalledSyncHidesNoFailure: a sync that the storage does not answer keeps those
// from succeeding that overlap it, and what it has found in the end counts.
func TestAStalledSyncHidesNoFailure(t *testing.T) {
	for _, c := range []struct {
		found error
		want  error
	}{{nil, nil}, {unix.EIO, blockdev.ErrPoisoned}} {
		synctest.Test(t, func(t *testing.T) {
			k := linux
			k.fdatasync = func(int) error { time.Sleep(5 * time.Minute); return c.found }
			v, _ := openFile(t, 1<<20, k, alone)
			var wg sync.WaitGroup
			wg.Go(func() { v.Flush() })
			synctest.Wait()
			began := time.Now()
			for range 8 {
				wg.Go(func() {
					if err := v.FlushRange(0, 4096); !errors.Is(err, c.want) {
						t.Errorf("the flush finds %v, another sync %v, want %v", c.found, err, c.want)
					}
					if d := time.Since(began); d != 5*time.Minute {
						t.Errorf("believed after %v", d)
					}
				})
			}
			// Everything else goes on meanwhile.
			if err := stagedWrite(t, v, false); err != nil {
				t.Error(err)
			}
			if _, err := v.ReadAt(make([]byte, 512), 0); err != nil {
				t.Error(err)
			}
			if d := time.Since(began); d != 0 {
				t.Errorf("reads and writes waited %v", d)
			}
			wg.Wait()
		})
	}
}
