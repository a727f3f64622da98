package blockdevtest

import (
	"errors"
	"math"
	"testing"

	"softiser/blockdev"
)

func testInfo(t *testing.T, b Backend) {
	dev := b.open(t, size)
	info := dev.Info()
	if info.Size != size {
		t.Errorf("Size = %d, want %d", info.Size, size)
	}
	if err := blockdev.CheckGeometry(info.Size, info.BlockSize, info.PhysBlockSize); err != nil {
		t.Error(err)
	}
	if info.Backend == "" || info.ID == "" {
		t.Errorf("Backend = %q, ID = %q: both must be set", info.Backend, info.ID)
	}
}

// testBounds gives every method every bad range.
func testBounds(t *testing.T, b Backend) {
	dev := b.open(t, size)
	bs := int64(dev.Info().BlockSize)
	var l blockdev.Lease
	calls := []struct {
		name string
		call func(off, n int64) error
	}{
		{"LeaseRead", func(off, n int64) error { return dev.LeaseRead(&l, off, int(n), blockdev.Wait) }},
		{"LeaseRead NoWait", func(off, n int64) error { return dev.LeaseRead(&l, off, int(n), blockdev.NoWait) }},
		{"LeaseWrite", func(off, n int64) error { return dev.LeaseWrite(&l, off, int(n), blockdev.Wait) }},
		{"LeaseWrite NoWait", func(off, n int64) error { return dev.LeaseWrite(&l, off, int(n), blockdev.NoWait) }},
		{"FlushRange", dev.FlushRange},
		{"Discard", dev.Discard},
		{"WriteZeroes", func(off, n int64) error { return dev.WriteZeroes(off, n, true) }},
		{"Extents", func(off, n int64) error { _, err := dev.Extents(off, n); return err }},
	}
	ranges := []struct {
		off, n int64
		want   error
	}{
		{-bs, bs, blockdev.ErrOutOfRange},
		{0, -bs, blockdev.ErrOutOfRange},
		{size, bs, blockdev.ErrOutOfRange},
		{size - bs, 2 * bs, blockdev.ErrOutOfRange},
		{size + bs, 0, blockdev.ErrOutOfRange},
		{bs, math.MaxInt64 &^ (bs - 1), blockdev.ErrOutOfRange},
		{math.MaxInt64 &^ (bs - 1), bs, blockdev.ErrOutOfRange},
		{math.MinInt64, bs, blockdev.ErrOutOfRange},
		{1, bs, blockdev.ErrUnaligned},
		{0, bs - 1, blockdev.ErrUnaligned},
		{bs / 2, bs / 2, blockdev.ErrUnaligned},
	}
	for _, c := range calls {
		for _, r := range ranges {
			err := c.call(r.off, r.n)
			if !errors.Is(err, r.want) {
				t.Errorf("%s(%d, %d) = %v, want %v", c.name, r.off, r.n, err, r.want)
			}
			if err == nil {
				l.Release()
			}
		}
	}
	buf := make([]byte, 2*bs)
	for _, r := range ranges {
		if r.n < 0 || r.n > int64(len(buf)) {
			continue
		}
		if _, err := dev.ReadAt(buf[:r.n], r.off); !errors.Is(err, r.want) {
			t.Errorf("ReadAt(%d bytes, %d) = %v, want %v", r.n, r.off, err, r.want)
		}
		if _, err := dev.WriteAt(buf[:r.n], r.off); !errors.Is(err, r.want) {
			t.Errorf("WriteAt(%d bytes, %d) = %v, want %v", r.n, r.off, err, r.want)
		}
	}
}

func testReadWrite(t *testing.T, b Backend) {
	dev := b.open(t, size)
	bs := dev.Info().BlockSize
	b.want(t, dev, make([]byte, size), 0)
	for i, n := range []int{bs, 4096, 4096 + bs, 65536, 3*4096 + bs} {
		// Odd places: one block before a page boundary, the very end.
		for _, off := range []int64{0, int64(16384*(i+1) - bs), size - int64(n)} {
			off &^= int64(bs - 1)
			p := pattern(byte(i*3+1), n)
			writeAt(t, dev, p, off)
			b.want(t, dev, p, off)
		}
	}
	// Nothing at the end is legal too.
	writeAt(t, dev, nil, size)
	b.want(t, dev, nil, size)
}

func testFlush(t *testing.T, b Backend) {
	dev := b.open(t, size)
	p := pattern(9, 8192)
	writeAt(t, dev, p, 4096)
	leaseWrite(t, dev, p, 65536, true)
	if err := dev.FlushRange(4096, 8192); err != nil {
		t.Errorf("FlushRange: %v", err)
	}
	if err := dev.FlushRange(size, 0); err != nil {
		t.Errorf("FlushRange of nothing: %v", err)
	}
	if err := dev.Flush(); err != nil {
		t.Errorf("Flush: %v", err)
	}
	b.want(t, dev, p, 4096)
	b.want(t, dev, p, 65536)
}

// testDiscard: what has been discarded reads as Info says, and nothing beside it
// changes.
func testDiscard(t *testing.T, b Backend) {
	dev := b.open(t, size)
	info := dev.Info()
	bs := int64(info.BlockSize)
	p := pattern(5, size)
	writeAt(t, dev, p, 0)
	if !info.Discard {
		if err := dev.Discard(0, 65536); !errors.Is(err, blockdev.ErrNotSupported) {
			t.Fatalf("Discard = %v, want ErrNotSupported, as Info.Discard says", err)
		}
		b.want(t, dev, p, 0)
		return
	}
	for _, r := range [][2]int64{{0, 65536}, {3 * bs, bs}, {131072 - bs, 3 * 4096}, {size - 4096, 4096}, {262144, 0}} {
		if err := dev.Discard(r[0], r[1]); err != nil {
			t.Fatalf("Discard(%d, %d): %v", r[0], r[1], err)
		}
		if info.ZeroesOnTrim {
			clear(p[r[0] : r[0]+r[1]])
		}
	}
	if info.ZeroesOnTrim {
		b.want(t, dev, p, 0)
	}
	// A discarded range takes new data, by both ways.
	q := pattern(77, 8192)
	writeAt(t, dev, q, 0)
	leaseWrite(t, dev, q, 16384, false)
	b.want(t, dev, q, 0)
	b.want(t, dev, q, 16384)
}

func testWriteZeroes(t *testing.T, b Backend) {
	dev := b.open(t, size)
	bs := int64(dev.Info().BlockSize)
	p := pattern(6, size)
	writeAt(t, dev, p, 0)
	for i, r := range [][2]int64{{0, 65536}, {69632 + bs, bs}, {131072 - bs, 3 * 4096}, {size - bs, bs}, {4096, 0}, {40 * bs, 200 * bs}} {
		if err := dev.WriteZeroes(r[0], r[1], i%2 == 0); err != nil {
			t.Fatalf("WriteZeroes(%d, %d): %v", r[0], r[1], err)
		}
		clear(p[r[0] : r[0]+r[1]])
		b.want(t, dev, p, 0)
	}
	writeAt(t, dev, p[200000&^4095:][:8192], 0)
	b.want(t, dev, p[200000&^4095:][:8192], 0)
}

// testExtents: extents cover the range that was asked for, in order and without gaps,
// and holes read as zeroes.
func testExtents(t *testing.T, b Backend) {
	dev := b.open(t, size)
	check := func(off, n int64) []blockdev.Extent {
		t.Helper()
		list, err := dev.Extents(off, n)
		if err != nil {
			t.Fatalf("Extents(%d, %d): %v", off, n, err)
		}
		if len(list) == 0 {
			t.Fatalf("Extents(%d, %d) is empty", off, n)
		}
		at := off
		for _, e := range list {
			if e.Off != at || e.Len < 0 || e.Len == 0 && n != 0 {
				t.Fatalf("Extents(%d, %d) = %v: not in order, or with gaps", off, n, list)
			}
			at += e.Len
		}
		if at != off+n {
			t.Fatalf("Extents(%d, %d) = %v ends at %d", off, n, list, at)
		}
		return list
	}
	check(0, size)
	check(size, 0)
	bs := int64(dev.Info().BlockSize)
	writeAt(t, dev, pattern(1, 65536), 131072)
	leaseWrite(t, dev, pattern(2, 65536), 393216, false)
	for _, r := range [][2]int64{{0, size}, {bs, size - bs}, {131072, bs}, {131072 + bs, 262144}, {size - bs, bs}} {
		for _, e := range check(r[0], r[1]) {
			// What was written may never be called a hole.
			if !e.Data && !b.Sink && (overlaps(e, 131072, 65536) || overlaps(e, 393216, 65536)) {
				t.Errorf("extent %+v is called a hole but holds data", e)
			}
		}
	}
}

func overlaps(e blockdev.Extent, off, n int64) bool { return e.Off < off+n && off < e.Off+e.Len }

// testClose: a device with open leases stays open, and a closed one refuses everything.
func testClose(t *testing.T, b Backend) {
	dev := b.open(t, size)
	p := pattern(3, 4096)
	var l blockdev.Lease
	if b.Direct {
		writeAt(t, dev, p, 0)
		if err := dev.LeaseRead(&l, 0, 4096, blockdev.Wait); err != nil {
			t.Fatal(err)
		}
		if err := dev.Close(); !errors.Is(err, blockdev.ErrInUse) {
			t.Fatalf("Close with an open lease = %v, want ErrInUse", err)
		}
		if got := gather(t, &l); firstDiff(got, p) >= 0 {
			t.Error("the refused Close damaged a lease")
		}
		l.Release()
		b.want(t, dev, p, 0)
	}
	if err := dev.Close(); err != nil {
		t.Fatalf("Close: %v", err)
	}
	buf := make([]byte, 4096)
	_, rerr := dev.ReadAt(buf, 0)
	_, werr := dev.WriteAt(buf, 0)
	_, eerr := dev.Extents(0, 4096)
	for name, err := range map[string]error{
		"LeaseRead":   dev.LeaseRead(&l, 0, 4096, blockdev.Wait),
		"LeaseWrite":  dev.LeaseWrite(&l, 0, 4096, blockdev.NoWait),
		"ReadAt":      rerr,
		"WriteAt":     werr,
		"Extents":     eerr,
		"Flush":       dev.Flush(),
		"FlushRange":  dev.FlushRange(0, 4096),
		"WriteZeroes": dev.WriteZeroes(0, 4096, false),
		"Close":       dev.Close(),
	} {
		if !errors.Is(err, blockdev.ErrClosed) {
			t.Errorf("%s after Close = %v, want ErrClosed", name, err)
		}
	}
	l.Release()
}
