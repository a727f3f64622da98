package backing

import (
	"bytes"
	"errors"
	"io"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// TestShortCalls: what the kernel takes and gives in pieces of any length is whole all the
// same, each byte at its place.
func TestShortCalls(t *testing.T) {
	for _, most := range []int{1, 511, 512, 700, 1024, 2000} {
		k := linux
		k.pwritev = func(fd int, bufs [][]byte, off int64) (int, error) {
			var some []byte
			for _, b := range bufs {
				some = append(some, b...)
			}
			return linux.pwritev(fd, [][]byte{some[:min(len(some), most)]}, off)
		}
		k.pread = func(fd int, p []byte, off int64) (int, error) { return linux.pread(fd, p[:min(len(p), most)], off) }
		v, _ := openFile(t, 64<<10, k, nil)
		data := make([]byte, 3072)
		for i := range data {
			data[i] = byte(i*7 + i>>8)
		}
		bufs := [][]byte{data[:512], data[512:1536], data[1536:2048], data[2048:]}
		if err := v.pwrite(bufs, 4096); err != nil {
			t.Fatal(err)
		}
		if len(bufs[0]) != 512 {
			t.Error("the caller's list was changed")
		}
		got := make([]byte, len(data)+1024)
		if _, err := v.ReadAt(got, 4096-512); err != nil {
			t.Fatal(err)
		}
		want := append(append(make([]byte, 512), data...), make([]byte, 512)...)
		if !bytes.Equal(got, want) {
			t.Errorf("%d bytes at a time: it is not what was written", most)
		}
	}
}

// TestWriteAfterTruncation: where the length of a store is asked of a server, writes ask for it once the watcher has
// found the store too short, and until it has found it long enough again.
func TestWriteAfterTruncation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var have, asked atomic.Int64
		have.Store(1 << 20)
		v, _ := openFile(t, 1<<20, linux, func(c *Config) {
			c.Local = false
			c.StoreSize = func() (int64, error) { asked.Add(1); return have.Load(), nil }
		})
		write := func() (int64, error) {
			before := asked.Load()
			_, err := v.WriteAt(make([]byte, 512), 768<<10)
			return asked.Load() - before, err
		}
		becomes := func(n int64) {
			have.Store(n)
			time.Sleep(watchEvery) // the clock of the bubble: the watcher looks
			synctest.Wait()
		}
		if n, err := write(); err != nil || n != 0 {
			t.Errorf("%v, and the length was asked for %d times", err, n)
		}
		becomes(256 << 10)
		if _, err := write(); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("a write behind the end: %v", err)
		}
		becomes(1 << 20)
		if n, err := write(); err != nil || n != 0 {
			t.Errorf("when it is as long as it was: %v, and the length was asked for %d times", err, n)
		}
	})
}

// TestFailedSyncsAreOver: a sync that does not get as far as the disk, because the store has
// become too short or another one has failed, holds up nobody.
func TestFailedSyncsAreOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		short := true
		v, _ := openFile(t, 1<<20, linux, func(c *Config) {
			size := c.StoreSize
			c.StoreSize = func() (int64, error) {
				n, err := size()
				if short {
					n = 512
				}
				return n, err
			}
		})
		if err := v.Flush(); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("a store of 512 bytes: %v", err)
		}
		short = false
		if err := v.Flush(); err != nil {
			t.Error(err)
		}
		goOn := make(chan error)
		v.sys.fdatasync = func(int) error { return <-goOn }
		ended := make(chan error)
		for range 2 {
			go func() { ended <- v.Flush() }()
			synctest.Wait()
		}
		goOn <- unix.EIO
		synctest.Wait()
		if err := <-ended; !errors.Is(err, unix.EIO) {
			t.Error(err)
		}
		if err := v.Flush(); err == nil { // while the other one is under way
			t.Error("a sync after a failed one")
		}
		goOn <- nil
		if err := <-ended; err == nil {
			t.Error("one that overlaps a failed one is believed")
		}
	})
}
