package crashlog

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"softiser/blockdev"
	"softiser/blockdev/blockdevtest"
	"softiser/blockdev/faulty"
)

func TestConformance(t *testing.T) {
	blockdevtest.Run(t, blockdevtest.Backend{
		Open: func(t *testing.T, size int64, pool *blockdev.Pool) blockdev.Device {
			d, err := NewPool(size, 512, pool)
			if err != nil {
				t.Fatal(err)
			}
			return d
		},
	})
}

func block(b byte) []byte { return bytes.Repeat([]byte{b}, 512) }

func write(t *testing.T, d *Device, off int64, blocks ...byte) {
	t.Helper()
	var p []byte
	for _, b := range blocks {
		p = append(p, block(b)...)
	}
	if _, err := d.WriteAt(p, off); err != nil {
		t.Fatal(err)
	}
}

// states writes each state as one digit per sector.
func states(d *Device, point, limit int) (list []string) {
	for im := range d.States(point, limit, 1) {
		s := ""
		for i := 0; i < len(im.Bytes()); i += 512 {
			s += fmt.Sprint(im.Bytes()[i])
		}
		list = append(list, s)
	}
	slices.Sort(list)
	return list
}

// TestStates compares the states at every point of a short history with those
// worked out by hand.
func TestStates(t *testing.T) {
	d, err := New(3*512, 512)
	if err != nil {
		t.Fatal(err)
	}
	write(t, d, 0, 1, 2)   // point 1: torn in every way
	write(t, d, 0, 3)      // 2: two versions of the first sector
	d.FlushRange(0, 512)   // 3: the first is certain
	write(t, d, 512, 4, 5) // 4
	d.Flush()              // 5
	d.Discard(1024, 512)   // 6: may be lost
	want := [][]string{
		{"000"},
		{"000", "020", "100", "120"},
		{"000", "020", "100", "120", "300", "320"},
		{"300", "320"},
		{"300", "305", "320", "325", "340", "345"},
		{"345"},
		{"340", "345"},
	}
	if d.Now() != len(want)-1 {
		t.Fatalf("Now = %d", d.Now())
	}
	for point, w := range want {
		if got := states(d, point, 100); !slices.Equal(got, w) {
			t.Errorf("point %d: %v, want %v", point, got, w)
		}
	}
	// Fewer than there are: the extremes are among them.
	got := states(d, 4, 4)
	if len(got) != 4 || !slices.Contains(got, "300") || !slices.Contains(got, "345") {
		t.Errorf("4 of 6 states: %v", got)
	}
}

// TestFUA: a commit with FUA is certain at once, one without is not.
func TestFUA(t *testing.T) {
	d, err := New(1024, 512)
	if err != nil {
		t.Fatal(err)
	}
	for i, fua := range []bool{false, true} {
		var l blockdev.Lease
		if err := d.LeaseWrite(&l, int64(i)*512, 512, blockdev.Wait); err != nil {
			t.Fatal(err)
		}
		copy(l.Segs[0], block(7))
		if err := l.Commit(fua); err != nil {
			t.Fatal(err)
		}
		l.Release()
	}
	if got, want := states(d, d.Now(), 10), []string{"07", "77"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// TestImage: a crash state can be read.
func TestImage(t *testing.T) {
	d, err := New(1024, 512)
	if err != nil {
		t.Fatal(err)
	}
	write(t, d, 0, 1, 1)
	d.Flush()
	for im := range d.States(d.Now(), 1, 0) {
		p := make([]byte, 512)
		if _, err := im.ReadAt(p, 512); err != nil || p[0] != 1 {
			t.Errorf("ReadAt = %d, %v", p[0], err)
		}
		if _, err := im.ReadAt(p, 600); err == nil {
			t.Error("ReadAt beyond the end succeeded")
		}
	}
}

// TestPromises runs random writes and flushes and checks, from the outside, that
// every state at every point keeps what was promised by then, and that only
// bytes that were written at some time show up.
func TestPromises(t *testing.T) {
	const sectors = 16
	d, err := New(sectors*512, 512)
	if err != nil {
		t.Fatal(err)
	}
	rnd := rand.New(rand.NewPCG(5, 6))
	// flushed and latest, by point: the newest certain and the newest number.
	var flushed, latest [][sectors]byte
	var f, l [sectors]byte
	flushed, latest = append(flushed, f), append(latest, l)
	for i := range 60 {
		if rnd.IntN(4) == 0 {
			if err := d.Flush(); err != nil {
				t.Fatal(err)
			}
			f = l
		} else {
			first := rnd.IntN(sectors)
			n := 1 + rnd.IntN(sectors-first)
			write(t, d, int64(first)*512, slices.Repeat([]byte{byte(i + 1)}, n)...)
			for s := first; s < first+n; s++ {
				l[s] = byte(i + 1)
			}
		}
		flushed, latest = append(flushed, f), append(latest, l)
	}
	for point := range flushed {
		n := 0
		for im := range d.States(point, 50, 9) {
			n++
			for s := range sectors {
				b := im.Bytes()[s*512 : s*512+512]
				if !bytes.Equal(b, block(b[0])) {
					t.Fatalf("point %d: sector %d is torn inside", point, s)
				}
				if b[0] < flushed[point][s] || b[0] > latest[point][s] {
					t.Fatalf("point %d: sector %d holds %d, must be %d to %d", point, s, b[0], flushed[point][s], latest[point][s])
				}
			}
		}
		if n == 0 {
			t.Fatalf("point %d has no state", point)
		}
	}
}

// TestLyingDisk: a device that acknowledges a flush and does nothing is caught.
func TestLyingDisk(t *testing.T) {
	for _, lies := range []bool{false, true} {
		d, err := New(1024, 512)
		if err != nil {
			t.Fatal(err)
		}
		var rules []faulty.Rule
		if lies {
			rules = []faulty.Rule{{Op: faulty.Flush, Lost: true}}
		}
		f := faulty.New(d, 1, rules...)
		if _, err := f.WriteAt(block(1), 0); err != nil {
			t.Fatal(err)
		}
		if err := f.Flush(); err != nil {
			t.Fatal(err)
		}
		lost := false
		for im := range d.States(d.Now(), 10, 0) {
			lost = lost || im.Bytes()[0] != 1
		}
		if lost != lies {
			t.Errorf("acknowledged data lost: %v, want %v", lost, lies)
		}
	}
}
