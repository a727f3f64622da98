package backing

import (
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"golang.org/x/sys/unix"

	"softiser/blockdev"
)

// openDevice opens a file as if it were a block device, without the watcher.
func openDevice(t *testing.T, k kernel) *Volume {
	v, _ := openFile(t, 1<<20, k, func(c *Config) {
		c.BlockDevice = true
		alone(c)
	})
	return v
}

// syncOf has a page made durable, and returns where the result comes.
func syncOf(v *Volume, page int64) chan error {
	done := make(chan error, 1)
	go func() { done <- v.FlushRange(page<<12, 4096) }()
	return done
}

func pending(t *testing.T, what string, c chan error) {
	t.Helper()
	synctest.Wait()
	select {
	case err := <-c:
		t.Errorf("%s has ended with %v", what, err)
	default:
	}
}

// What has been written when a flush begins is flushed by it; what is written later waits for
// the next one, all together.
func TestFlushesAreShared(t *testing.T) {
	for _, second := range []error{nil, unix.EIO} {
		synctest.Test(t, func(t *testing.T) {
			p := newTape()
			k := p.kernel()
			var written atomic.Int32
			k.writeOut = func(int, int64, int64) error { written.Add(1); return nil }
			v := openDevice(t, k)
			first := syncOf(v, 0)
			<-p.begun
			var others []chan error
			for page := range int64(3) {
				others = append(others, syncOf(v, page))
			}
			synctest.Wait()
			if n := written.Load(); n != 4 {
				t.Fatalf("%d ranges are written while a flush is under way, want 4", n)
			}
			p.sync <- nil
			if err := <-first; err != nil {
				t.Error(err)
			}
			<-p.begun
			for _, c := range others {
				pending(t, "a sync that the flush before could not do", c)
			}
			p.sync <- second
			failed := 0
			for _, c := range others {
				switch err := <-c; {
				case errors.Is(err, unix.EIO):
					failed++
				case second == nil && err != nil, second != nil && !errors.Is(err, blockdev.ErrPoisoned):
					t.Errorf("after a flush that ended with %v: %v", second, err)
				}
			}
			if second != nil && failed != 1 {
				t.Errorf("%d syncs have the error of the flush", failed)
			}
			if len(p.begun) != 0 {
				t.Error("there was a third flush")
			}
		})
	}
}

// A flush that was refused before it began is none for anybody.
func TestFlushThatWasNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f flushes
		gate := make(chan struct{})
		var done atomic.Int32
		ends := make(chan error, 3)
		join := func(err error, wait bool) {
			go func() {
				ends <- f.join(func() error {
					if wait {
						<-gate
					}
					if err == nil {
						done.Add(1)
					}
					return err
				})
			}()
			synctest.Wait()
		}
		join(nil, true)
		join(unix.EIO, false)
		join(nil, false)
		close(gate)
		for range 3 {
			<-ends
		}
		if done.Load() != 2 {
			t.Errorf("%d flushes have been made, want 2", done.Load())
		}
	})
}

// A write to a block device that fails poisons the volume, and no other that overlaps it succeeds.
func TestFailedWriteOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := linux
		gate := make(chan error)
		k.writeOut = func(_ int, off, _ int64) error {
			if off == 0 {
				return <-gate
			}
			return nil
		}
		k.msync = func([]byte, int) error { return nil }
		v := openDevice(t, k)
		bad := syncOf(v, 0)
		synctest.Wait()
		good := syncOf(v, 1)
		pending(t, "a sync beside one that may have its error", good)
		gate <- unix.EIO
		if err := <-bad; !errors.Is(err, unix.EIO) {
			t.Errorf("the one that fails: %v", err)
		}
		if err := <-good; !errors.Is(err, blockdev.ErrPoisoned) {
			t.Errorf("the other one: %v", err)
		}
		if err := v.Flush(); !errors.Is(err, blockdev.ErrPoisoned) {
			t.Errorf("Flush: %v", err)
		}
	})
}
