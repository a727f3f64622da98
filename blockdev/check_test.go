package blockdev

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"syscall"
	"testing"
)

func TestCheckGeometry(t *testing.T) {
	for _, c := range []struct {
		size     int64
		bs, phys int
		ok       bool
	}{
		{4096, 512, 4096, true},
		{4096, 4096, 4096, true},
		{512, 512, 512, true},
		{0, 512, 512, false},
		{-512, 512, 512, false},
		{1000, 512, 512, false},
		{4096, 4096, 512, false},
		{4096, 1024, 4096, false},
		{4096, 0, 4096, false},
		{4096, 512, 1000, false},
	} {
		if err := CheckGeometry(c.size, c.bs, c.phys); (err == nil) != c.ok {
			t.Errorf("CheckGeometry(%d, %d, %d) = %v", c.size, c.bs, c.phys, err)
		}
	}
}

// A range lies inside a device, to its last block, whatever its sums would overflow to.
func TestCheckRange(t *testing.T) {
	const top = math.MaxInt64 &^ 511
	for _, c := range []struct {
		off, n, size int64
		want         error
	}{
		{0, 0, 0, nil}, {0, 4096, 4096, nil}, {3584, 512, 4096, nil}, {4096, 0, 4096, nil}, {0, top, top, nil}, {top - 512, 512, top, nil},
		{-512, 512, 4096, ErrOutOfRange}, {-512, 0, 4096, ErrOutOfRange}, {512, -512, 4096, ErrOutOfRange}, {0, 4608, 4096, ErrOutOfRange},
		{4096, 512, 4096, ErrOutOfRange}, {4608, 0, 4096, ErrOutOfRange}, {512, top, 4096, ErrOutOfRange}, {top, top, top, ErrOutOfRange}, {math.MinInt64, math.MinInt64, 4096, ErrOutOfRange},
		{1, 512, 4096, ErrUnaligned}, {0, 511, 4096, ErrUnaligned}, {256, 256, 4096, ErrUnaligned},
	} {
		if err := CheckRange(c.off, c.n, c.size, 512); err != c.want {
			t.Errorf("%d bytes at %d of %d: %v, want %v", c.n, c.off, c.size, err, c.want)
		}
		ro := Info{Size: c.size, BlockSize: 512, ReadOnly: true}
		want := c.want
		if want == nil {
			want = ErrReadOnly
		}
		if err := ro.CheckWrite(c.off, c.n); err != want {
			t.Errorf("to be written where nothing may, %d bytes at %d of %d: %v, want %v", c.n, c.off, c.size, err, want)
		}
	}
	if err := CheckRange(512, 4096, 1<<20, 4096); err != ErrUnaligned {
		t.Error(err)
	}
}

func FuzzCheckRange(f *testing.F) {
	f.Add(int64(0), int64(512), int64(4096))
	f.Add(int64(math.MaxInt64), int64(math.MaxInt64), int64(4096))
	f.Add(int64(math.MinInt64), int64(1), int64(4096))
	f.Add(int64(-512), int64(512), int64(4096))
	f.Fuzz(func(t *testing.T, off, n, size int64) {
		if size < 0 {
			return
		}
		if err := CheckRange(off, n, size, 512); err == nil {
			// Then the sum cannot overflow.
			if off < 0 || n < 0 || off+n > size || off%512 != 0 || n%512 != 0 {
				t.Errorf("CheckRange(%d, %d, %d) passed", off, n, size)
			}
		}
	})
}

func TestKindOf(t *testing.T) {
	for err, want := range map[error]error{
		syscall.ENOSPC:     ErrNoSpace,
		syscall.EDQUOT:     ErrNoSpace,
		syscall.EFBIG:      ErrNoSpace,
		syscall.EROFS:      ErrReadOnly,
		syscall.EIO:        ErrMedium,
		syscall.ENXIO:      ErrMedium,
		syscall.EOPNOTSUPP: ErrNotSupported,
		syscall.ENOMEM:     ErrNoSpace,
		syscall.EPERM:      ErrReadOnly,
		syscall.EACCES:     ErrReadOnly,
		syscall.EBADF:      ErrReadOnly,
		syscall.ENOSYS:     ErrNotSupported,
		syscall.EBUSY:      ErrInUse,
		syscall.ETXTBSY:    ErrInUse,
		fmt.Errorf("wrapped: %w", syscall.ENOSPC): ErrNoSpace,
		errors.New("whatever"):                    ErrMedium,
	} {
		if got := KindOf(err); got != want {
			t.Errorf("KindOf(%v) = %v, want %v", err, got, want)
		}
	}
	e := &Error{Op: "pread", Store: "x", Kind: ErrMedium, Cause: syscall.EIO}
	if !errors.Is(e, ErrMedium) || !errors.Is(e, syscall.EIO) || errors.Is(e, ErrNoSpace) {
		t.Errorf("%v does not unwrap to its reasons", e)
	}
	if e := (&Error{Op: "pread", Kind: ErrMedium}); !errors.Is(e, ErrMedium) || e.Error() == "" || slices.Contains(e.Unwrap(), nil) {
		t.Error("an error without a cause")
	}
}
