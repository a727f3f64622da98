package backing

import (
	"bytes"
	"errors"
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"softiser/blockdev"
)

// openStaged opens a file as one on a disk, whose writes are not received into its mapping.
func openStaged(t *testing.T, size int64, k kernel) (*Volume, string) {
	return openFile(t, size, k, func(c *Config) { c.Info.InPlace = false })
}

// A write to a file is received into pool memory and written by a system call, whatever is known of its
// pages. Nothing is populated for it.
func TestWritesAreStaged(t *testing.T) {
	k := linux
	k.madvise = func(p []byte, advice int) error {
		if advice == unix.MADV_POPULATE_WRITE {
			t.Error("pages were populated to be stored to")
		}
		return unix.Madvise(p, advice)
	}
	v, path := openStaged(t, 1<<20, k)
	want := make([]byte, 1<<20)
	for i, what := range []string{"a hole", "data that has just been written", "the same, after a flush"} {
		for _, m := range []blockdev.Mode{blockdev.NoWait, blockdev.Wait} {
			var l blockdev.Lease
			if err := v.LeaseWrite(&l, 8192, 128<<10, m); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			if l.Direct || !l.MayBlock(false) {
				t.Errorf("%s: the lease is direct: %v; its commit may wait: %v", what, l.Direct, l.MayBlock(false))
			}
			p := bytes.Repeat([]byte{byte(2*i) + byte(m) + 1}, 128<<10)
			copy(want[8192:], p)
			off := 0
			for _, s := range l.Segs {
				off += copy(s, p[off:])
			}
			if err := l.Commit(i > 0); err != nil {
				t.Fatal(err)
			}
			l.Release()
		}
	}
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the file holds something else: %v", err)
	}
}

// A probe lends the mapping where the memory behind the blocks is there and has its space, and says of
// everything else that a write would wait.
func TestProbe(t *testing.T) {
	v, _ := openStaged(t, 1<<20, linux)
	var l blockdev.Lease
	probe := func(off int64) error {
		err := v.LeaseWrite(&l, off, 4096, blockdev.Probe)
		if err == nil && !l.Direct {
			t.Error("a probe took pool memory")
		}
		l.Release()
		return err
	}
	if err := probe(8192); !errors.Is(err, blockdev.ErrWouldBlock) {
		t.Errorf("of a hole: %v, want ErrWouldBlock", err)
	}
	if _, err := v.WriteAt(make([]byte, 4096), 8192); err != nil {
		t.Fatal(err)
	}
	if err := probe(8192); err != nil {
		t.Errorf("of what has just been written: %v", err)
	}
	var open blockdev.Lease
	if err := v.LeaseRead(&open, 8192, 4096, blockdev.Wait); err != nil {
		t.Fatal(err)
	}
	if err := probe(8192); !errors.Is(err, blockdev.ErrWouldBlock) {
		t.Errorf("of what is lent: %v, want ErrWouldBlock", err)
	}
	open.Release()
	if err := probe(12288); !errors.Is(err, blockdev.ErrWouldBlock) {
		t.Errorf("of the page behind it: %v, want ErrWouldBlock", err)
	}
	if err := probe(1 << 20); !errors.Is(err, blockdev.ErrOutOfRange) {
		t.Errorf("behind the end: %v, want ErrOutOfRange", err)
	}
}

// No call writes more than a piece to a file, and short buffers go together; memory takes all at once.
func TestPieces(t *testing.T) {
	buffers := func(lengths ...int) (bufs [][]byte) {
		for i, n := range lengths {
			bufs = append(bufs, bytes.Repeat([]byte{byte(i + 1)}, n))
		}
		return bufs
	}
	const kib = 1 << 10
	for _, tc := range []struct {
		what    string
		bufs    [][]byte
		inPlace bool
		short   bool // the kernel writes half of what it is given, now and then
		calls   []int
	}{
		{"one piece", buffers(pieceMax), false, false, []int{pieceMax}},
		{"one buffer", buffers(200 * kib), false, false, []int{pieceMax, pieceMax, pieceMax, 8 * kib}},
		{"short ones", buffers(32*kib, 32*kib, 4*kib, 512), false, false, []int{pieceMax, 4*kib + 512}},
		{"a long one in the middle", buffers(4*kib, 65*kib, 4*kib), false, false, []int{4 * kib, pieceMax, kib, 4 * kib}},
		{"short writes", buffers(4*kib, 100*kib), false, true, []int{4 * kib, 2 * kib, pieceMax, 32 * kib, 36 * kib, 18 * kib}},
		{"memory", buffers(4*kib, 200*kib), true, false, []int{204 * kib}},
	} {
		t.Run(tc.what, func(t *testing.T) {
			var calls []int
			k := linux
			k.pwritev = func(fd int, bufs [][]byte, off int64) (int, error) {
				n := int(total(bufs))
				calls = append(calls, n)
				if tc.short && len(calls)%2 == 1 {
					return pwritev(fd, [][]byte{bufs[0][:n/2]}, off)
				}
				return pwritev(fd, bufs, off)
			}
			v, path := openFile(t, 1<<20, k, func(c *Config) { c.Info.InPlace = tc.inPlace })
			if err := v.pwrite(slices.Clone(tc.bufs), 4096); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(calls, tc.calls) {
				t.Errorf("calls of %v bytes, want %v", calls, tc.calls)
			}
			want := bytes.Join(tc.bufs, nil)
			if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got[4096:4096+len(want)], want) {
				t.Errorf("the file holds something else: %v", err)
			}
		})
	}
}
