package snap

import (
	"bytes"
	"fmt"
	"testing"

	"softiser/blockdev"
	"softiser/lvm/internal/lvmtest"
)

// TestWholeChunks: a write to a snapshot reads of the origin only what it does
// not cover, writes each chunk once, and is durable with its exceptions.
func TestWholeChunks(t *testing.T) {
	const chunk = 16384
	base := &slowDisk{Disk: lvmtest.New(size)}
	model := make([]byte, size)
	for i := range model {
		model[i] = byte(i/512)%200 + 1
	}
	_, err := base.WriteAt(model, 0)
	must(t, err)
	disk := lvmtest.New(4 * size)
	_, err = OpenStore(disk, chunk)
	must(t, err)
	cow := &slowDisk{Disk: disk}
	st, err := OpenStore(cow, chunk)
	must(t, err)
	set := NewSet(base, nil, nil)
	snap, origin := set.Add("s", st, size), set.Origin()
	old := bytes.Clone(model)

	counts := func() string {
		return fmt.Sprintf("%d reads of the origin, %d writes, %d flushes", base.reads.Swap(0), cow.writes.Swap(0), cow.flushes.Swap(0))
	}
	counts()
	write := func(off, n int, b byte, lease bool) {
		t.Helper()
		p := bytes.Repeat([]byte{b}, n)
		copy(model[off:], p)
		if !lease {
			_, err := snap.WriteAt(p, int64(off))
			must(t, err)
			return
		}
		var l blockdev.Lease
		must(t, snap.LeaseWrite(&l, int64(off), n, blockdev.Wait))
		for _, s := range l.Segs {
			p = p[copy(s, p):]
		}
		must(t, l.Commit(true))
		l.Release()
	}
	for _, c := range []struct {
		what   string
		off, n int // in 4 KiB
		lease  bool
		want   string // a commit is one write, of the list, and two flushes
	}{
		{"a whole chunk", 0, 4, false, "0 reads of the origin, 2 writes, 2 flushes"},
		{"a whole chunk, FUA", 4, 4, true, "0 reads of the origin, 2 writes, 2 flushes"},
		{"three chunks", 8, 12, false, "0 reads of the origin, 2 writes, 2 flushes"},
		{"nine chunks, of which eight are copied at once, FUA", 40, 36, true, "0 reads of the origin, 3 writes, 2 flushes"},
		{"a part", 21, 2, false, "2 reads of the origin, 2 writes, 2 flushes"},
		{"parts of two chunks, FUA", 26, 4, true, "2 reads of the origin, 2 writes, 2 flushes"},
		{"what it has, and a new chunk on both sides", 98, 4, false, "2 reads of the origin, 2 writes, 2 flushes"},
		{"new, old, new", 94, 12, true, "2 reads of the origin, 4 writes, 3 flushes"},
		{"what it has, FUA", 0, 4, true, "0 reads of the origin, 0 writes, 0 flushes"}, // lent and committed by the store's own lease
		{"the end of the origin", size/4096 - 1, 1, false, "1 reads of the origin, 2 writes, 2 flushes"},
	} {
		write(c.off*4096, c.n*4096, byte(201+c.off%50), c.lease)
		if got := counts(); got != c.want {
			t.Errorf("%s: %s; want %s", c.what, got, c.want)
		}
	}
	got := make([]byte, size)
	_, err = snap.ReadAt(got, 0)
	must(t, err)
	if !bytes.Equal(got, model) {
		t.Error("the snapshot differs")
	}
	if _, err = origin.ReadAt(got, 0); err != nil || !bytes.Equal(got, old) {
		t.Errorf("the origin has changed (%v)", err)
	}
	// Everything was durable: nothing is lost with the power.
	again, err := OpenStore(disk, chunk)
	must(t, err)
	if len(again.table) != snap.Usage().Exceptions {
		t.Errorf("%d exceptions are recorded of %d", len(again.table), snap.Usage().Exceptions)
	}
}

// TestOwnWriteAndCopyOut: a first write to a snapshot and one to its origin meet
// at one chunk; whichever comes first, neither is lost.
func TestOwnWriteAndCopyOut(t *testing.T) {
	for i := range 200 {
		base := lvmtest.New(size)
		st, err := OpenStore(lvmtest.New(4*size), 4096)
		must(t, err)
		set := NewSet(shuffle{base}, nil, nil)
		snap, origin := set.Add("s", st, size), set.Origin()
		done := make(chan error)
		go func() { _, err := origin.WriteAt(bytes.Repeat([]byte{1}, 8192), 0); done <- err }()
		n, off := 4096, int64(4096)
		if i%2 == 0 {
			n, off = 512, 4096+512
		}
		_, err = snap.WriteAt(bytes.Repeat([]byte{2}, n), off)
		must(t, err)
		must(t, <-done)
		want := make([]byte, 8192)
		copy(want[off:], bytes.Repeat([]byte{2}, n))
		got := make([]byte, 8192)
		_, err = snap.ReadAt(got, 0)
		must(t, err)
		if !bytes.Equal(got, want) {
			t.Fatalf("run %d: the snapshot is wrong", i)
		}
		_, err = origin.ReadAt(got, 0)
		must(t, err)
		if !bytes.Equal(got, bytes.Repeat([]byte{1}, 8192)) {
			t.Fatalf("run %d: the origin is wrong", i)
		}
	}
}
