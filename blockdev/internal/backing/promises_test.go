package backing

import (
	"errors"
	"io"
	"testing"

	"golang.org/x/sys/unix"

	"softiser/blockdev"
)

// TestWhatMayBeUnmapped: zeroes are a hole only where the caller allows it, holes read as
// zeroes, and space is not reserved; what is discarded is one unless it is.
func TestWhatMayBeUnmapped(t *testing.T) {
	for i := range 16 {
		may, discard, zeroes, reserved := i&1 != 0, i&2 != 0, i&4 != 0, i&8 != 0
		punched := 0
		v, _ := openFile(t, 1<<20, linux, func(c *Config) {
			c.Info.Discard, c.Info.ZeroesOnTrim, c.Prealloc = discard, zeroes, reserved
			c.Punch = func(int64, int64) error { punched++; return nil }
			c.Zero = func(int64, int64) error { return nil }
		})
		if err := v.WriteZeroes(0, 4096, may); err != nil {
			t.Error(err)
		}
		if want := may && discard && zeroes && !reserved; (punched == 1) != want {
			t.Errorf("allowed %v, discard %v, reads as zeroes %v, reserved %v: a hole %d times", may, discard, zeroes, reserved, punched)
		}
		punched = 0
		if err := v.Discard(0, 4096); (err == nil) != discard {
			t.Error(err)
		}
		if want := discard && !reserved; (punched == 1) != want {
			t.Errorf("discard %v, reserved %v: a hole %d times", discard, reserved, punched)
		}
	}
}

// TestZeroesTheSlowWay: where the store has no call for zeroes they are written.
func TestZeroesTheSlowWay(t *testing.T) {
	v, _ := openFile(t, 1<<20, linux, func(c *Config) {
		c.Zero = func(int64, int64) error { return unix.EOPNOTSUPP }
	})
	if _, err := v.WriteAt([]byte{511: 1}, 0); err != nil {
		t.Fatal(err)
	}
	if err := v.WriteZeroes(0, 512, false); err != nil {
		t.Fatal(err)
	}
	p := []byte{511: 1}
	if _, err := v.ReadAt(p, 0); err != nil || p[511] != 0 {
		t.Errorf("%v; the byte is %d", err, p[511])
	}
}

// TestPoisonedChangesNothing: what has to be durable and cannot be any more is not begun.
func TestPoisonedChangesNothing(t *testing.T) {
	k, touched := linux, 0
	k.fdatasync = func(int) error { return unix.EIO }
	k.pwritev = func(int, [][]byte, int64) (int, error) { touched++; return 0, unix.EIO }
	v, _ := openFile(t, 1<<20, k, func(c *Config) {
		c.WriteThrough = true
		c.Punch = func(int64, int64) error { touched++; return nil }
	})
	if v.Flush() == nil {
		t.Fatal("the disk does not fail")
	}
	for what, f := range map[string]func() error{
		"a write": func() error { _, err := v.WriteAt(make([]byte, 512), 0); return err },
		"zeroes":  func() error { return v.WriteZeroes(0, 4096, true) },
		"discard": func() error { return v.Discard(0, 4096) },
	} {
		if err := f(); !errors.Is(err, blockdev.ErrPoisoned) || touched != 0 {
			t.Errorf("%s: %v, the store was touched %d times", what, err, touched)
		}
	}
}

// TestShrinkFails: a store that does not become shorter leaves the volume as it was.
func TestShrinkFails(t *testing.T) {
	v, _ := openFile(t, 1<<20, linux, func(c *Config) {
		c.Truncate = func(int64) error { return unix.EPERM }
	})
	for _, n := range []int64{1 << 19, 1 << 21} {
		if err := v.Resize(n); !errors.Is(err, unix.EPERM) {
			t.Errorf("to %d: %v", n, err)
		}
		if size := v.Info().Size; size != 1<<20 {
			t.Errorf("to %d: the size is %d", n, size)
		}
	}
}

// TestWriteOfNothing: a store that takes nothing, and says no error, is one that fails.
func TestWriteOfNothing(t *testing.T) {
	k, calls := linux, 0
	k.pwritev = func(int, [][]byte, int64) (int, error) {
		if calls++; calls > 10 {
			return 0, unix.EIO // an end for those who try for ever
		}
		return 0, nil
	}
	v, _ := openFile(t, 1<<20, k, nil)
	if _, err := v.WriteAt(make([]byte, 512), 0); !errors.Is(err, io.ErrShortWrite) {
		t.Errorf("%v after %d calls", err, calls)
	}
}

// TestLeaseEndsWithItsRange: nobody can reach beyond what he was lent.
func TestLeaseEndsWithItsRange(t *testing.T) {
	v, _ := openFile(t, 1<<20, linux, nil)
	var l blockdev.Lease
	if err := v.LeaseWrite(&l, 4096, 4096, blockdev.Wait); err != nil {
		t.Fatal(err)
	}
	defer l.Release()
	if !l.Direct {
		t.Skip("the kernel does not reserve pages ahead")
	}
	if n := cap(l.Segs[0]); n != 4096 {
		t.Errorf("%d bytes are in reach", n)
	}
}
