package backing

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"softiser/blockdev"
)

// TestErase: what was there is overwritten, and the zeroes are on the medium before
// the blocks are given back. Holes cost nothing.
func TestErase(t *testing.T) {
	for _, prealloc := range []bool{false, true} {
		var steps []string
		var fail string
		step := func(name string) error {
			steps = append(steps, name)
			if name == fail {
				return unix.EIO
			}
			return nil
		}
		k := linux
		k.pwritev = func(fd int, b [][]byte, off int64) (int, error) {
			if err := step("write"); err != nil {
				return 0, err
			}
			return linux.pwritev(fd, b, off)
		}
		k.msync = func(p []byte, flags int) error {
			if err := step("sync"); err != nil {
				return err
			}
			return linux.msync(p, flags)
		}
		k.fallocate = func(fd int, mode uint32, off, n int64) error {
			if err := step("punch"); err != nil {
				return err
			}
			return linux.fallocate(fd, mode, off, n)
		}
		v, path := openFile(t, 8<<20, k, func(c *Config) {
			c.Prealloc = prealloc
			// Never to be used: the file system would only mark the range.
			c.Zero = func(off, n int64) error { return step("mark") }
		})
		if _, err := v.WriteAt(bytes.Repeat([]byte{7}, 8192), 4<<20); err != nil {
			t.Fatal(err)
		}
		steps = nil
		if err := v.Erase(0, 8<<20); err != nil {
			t.Fatal(err)
		}
		want := []string{"write", "sync", "punch"}
		if prealloc {
			want = want[:2]
		}
		if !slices.Equal(steps, want) {
			t.Errorf("prealloc %v: %v, want %v", prealloc, steps, want)
		}
		got, err := os.ReadFile(path)
		if err != nil || !bytes.Equal(got, make([]byte, 8<<20)) {
			t.Errorf("content is left: %v", err)
		}
		// What cannot be overwritten, or not for certain, is not given back.
		for _, fail = range []string{"write", "sync"} {
			v.sys = linux
			if _, err := v.WriteAt(make([]byte, 4096), 0); err != nil {
				t.Fatal(err)
			}
			v.sys, steps = k, nil
			if err := v.Erase(0, 1<<20); !errors.Is(err, blockdev.ErrMedium) {
				t.Errorf("%s fails: %v", fail, err)
			}
			if slices.Contains(steps, "punch") {
				t.Errorf("%s fails: %v", fail, steps)
			}
		}
	}
}

// TestEraseReachesReservedBlocks: blocks that the file system has only marked as zero, which no search
// for data finds, are overwritten before it gets them back.
func TestEraseReachesReservedBlocks(t *testing.T) {
	for _, prealloc := range []bool{false, true} {
		var steps []string
		k := linux
		k.pwritev = func(fd int, b [][]byte, off int64) (int, error) {
			steps = append(steps, fmt.Sprintf("write %d+%d", off, total(b)))
			return linux.pwritev(fd, b, off)
		}
		k.msync = func(p []byte, flags int) error {
			steps = append(steps, "sync")
			return linux.msync(p, flags)
		}
		k.fallocate = func(fd int, mode uint32, off, n int64) error {
			steps = append(steps, "punch")
			return linux.fallocate(fd, mode, off, n)
		}
		v, path := openFile(t, 8<<20, k, func(c *Config) {
			c.Prealloc = prealloc
			fd := c.FD
			c.Zero = func(off, n int64) error {
				return linux.fallocate(fd, unix.FALLOC_FL_ZERO_RANGE|unix.FALLOC_FL_KEEP_SIZE, off, n)
			}
		})
		if err := linux.fallocate(v.fd, unix.FALLOC_FL_ZERO_RANGE|unix.FALLOC_FL_KEEP_SIZE, 0, 4096); err != nil {
			t.Skipf("%s: the file system does not mark ranges as zero: %v", path, err)
		}
		if at, n, err := allocated(v.fd, 0, 8<<20); err != nil || at != 0 || n != 4096 {
			t.Skipf("%s: the file system does not tell of its blocks: %d+%d, %v", path, at, n, err)
		}
		if _, err := v.WriteAt(bytes.Repeat([]byte{7}, 8192), 4<<20); err != nil {
			t.Fatal(err)
		}
		if err := v.Flush(); err != nil {
			t.Fatal(err)
		}
		if err := v.WriteZeroes(4<<20, 8192, false); err != nil {
			t.Fatal(err)
		}
		steps = nil
		if err := v.Erase(1<<20, 7<<20); err != nil {
			t.Fatal(err)
		}
		want := []string{"write 4194304+8192", "sync", "punch"}
		if prealloc {
			want = want[:2]
		}
		if !slices.Equal(steps, want) {
			t.Errorf("prealloc %v: %v, want %v", prealloc, steps, want)
		}
	}
}
