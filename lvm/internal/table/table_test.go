package table

import (
	"fmt"
	"strings"
	"testing"

	"softiser/blockdev"
	"softiser/blockdev/blockdevtest"
	"softiser/blockdev/mem"
	"softiser/internal/alloctest"
)

func newMem(t testing.TB, size int64, pool *blockdev.Pool) *mem.Device {
	t.Helper()
	d, err := mem.Open(mem.Config{Size: size, Pool: pool})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

// closing makes the suite's Close close what the table itself leaves open.
type closing struct {
	*Device
	under []blockdev.Device
}

func (c closing) Close() error {
	for _, d := range c.under {
		if err := d.Close(); err != nil {
			return err
		}
	}
	return nil
}

func TestLinearConformance(t *testing.T) {
	blockdevtest.Run(t, blockdevtest.Backend{Direct: true, Open: func(t *testing.T, size int64, pool *blockdev.Pool) blockdev.Device {
		a, b := newMem(t, size+65536, pool), newMem(t, size+65536, pool)
		first := size / 2 &^ 4095
		d, err := New("t", []Run{
			{Len: first, Stripes: []Stripe{{Dev: a, Off: 65536, Disk: true}}},
			{Len: size - first, Stripes: []Stripe{{Dev: b}}},
		})
		if err != nil {
			t.Fatal(err)
		}
		return closing{d, []blockdev.Device{a, b}}
	}})
}

func TestStripedConformance(t *testing.T) {
	blockdevtest.Run(t, blockdevtest.Backend{Direct: true, Open: func(t *testing.T, size int64, pool *blockdev.Pool) blockdev.Device {
		a, b := newMem(t, size, pool), newMem(t, size, pool)
		d, err := New("t", []Run{{Len: size, Chunk: 16384, Stripes: []Stripe{{Dev: a, Disk: true}, {Dev: b, Off: 4096}}}})
		if err != nil {
			t.Fatal(err)
		}
		return closing{d, []blockdev.Device{a, b}}
	}})
}

// TestStriping checks where each chunk goes.
func TestStriping(t *testing.T) {
	a, b, c := newMem(t, 1<<20, nil), newMem(t, 1<<20, nil), newMem(t, 1<<20, nil)
	d, err := New("t", []Run{
		{Len: 3 * 8192, Chunk: 4096, Stripes: []Stripe{{Dev: a, Off: 0}, {Dev: b, Off: 4096}, {Dev: c, Off: 8192}}},
		{Len: 4096, Stripes: []Stripe{{Dev: a, Off: 65536}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	type at struct {
		dev blockdev.Device
		off int64
		n   int64
	}
	var got []at
	if err := d.Pieces(2048, 24576, func(dev blockdev.Device, off, n int64) { got = append(got, at{dev, off, n}) }); err != nil {
		t.Fatal(err)
	}
	want := []at{{a, 2048, 2048}, {b, 4096, 4096}, {c, 8192, 4096}, {a, 4096, 4096}, {b, 8192, 4096}, {c, 12288, 4096}, {a, 65536, 2048}}
	if len(got) != len(want) {
		t.Fatalf("%+v", got)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("piece %d: %+v, want %+v", i, got[i], want[i])
		}
	}
}

func TestNewErrors(t *testing.T) {
	a := newMem(t, 1<<20, nil)
	for _, r := range []Run{
		{Len: 0, Stripes: []Stripe{{Dev: a, Off: 0}}},
		{Len: 4096},
		{Len: 4096, Stripes: []Stripe{{Dev: a, Off: 1 << 20}}},
		{Len: 4096, Stripes: []Stripe{{Dev: a, Off: -4096}}},
		{Len: 4096, Stripes: []Stripe{{Dev: a, Off: 100}}},
		{Len: 12288, Chunk: 4096, Stripes: []Stripe{{Dev: a, Off: 0}, {Dev: a, Off: 8192}}},
		{Len: 8192, Stripes: []Stripe{{Dev: a, Off: 0}, {Dev: a, Off: 8192}}},
	} {
		if _, err := New("t", []Run{r}); err == nil {
			t.Errorf("%+v accepted", r)
		}
	}
}

func BenchmarkLease(b *testing.B) {
	m := newMem(b, 64<<20, nil)
	d, err := New("t", []Run{{Len: 32 << 20, Stripes: []Stripe{{Dev: m, Off: 1 << 20, Disk: true}}}})
	if err != nil {
		b.Fatal(err)
	}
	var l blockdev.Lease
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if err := d.LeaseRead(&l, int64(i%4096)*4096, 4096, blockdev.Wait); err != nil {
			b.Fatal(err)
		}
		l.Release()
	}
}

// disk notes the leases that reach it.
type disk struct {
	blockdev.Device
	name  string
	calls *[]string
	last  *blockdev.Lease
}

func (d *disk) note(what string, l *blockdev.Lease, off int64, n int) {
	*d.calls = append(*d.calls, fmt.Sprintf("%s %s %d+%d", what, d.name, off, n))
	d.last = l
}

func (d *disk) LeaseRead(l *blockdev.Lease, off int64, n int, m blockdev.Mode) error {
	d.note("read", l, off, n)
	err := d.Device.LeaseRead(l, off, n, m)
	l.Owner = d
	return err
}

func (d *disk) LeaseWrite(l *blockdev.Lease, off int64, n int, m blockdev.Mode) error {
	d.note("write", l, off, n)
	err := d.Device.LeaseWrite(l, off, n, m)
	l.Owner = d
	return err
}

func (d *disk) CommitLease(l *blockdev.Lease, fua bool) error {
	d.note("commit", l, l.Off, l.Len)
	return d.Device.(blockdev.Lender).CommitLease(l, fua)
}

func (d *disk) CommitMayBlock(l *blockdev.Lease, fua bool) bool {
	d.note("blocks", l, l.Off, l.Len)
	return d.Device.(blockdev.Lender).CommitMayBlock(l, fua)
}

func (d *disk) ReleaseLease(l *blockdev.Lease) {
	d.note("release", l, l.Off, l.Len)
	d.Device.(blockdev.Lender).ReleaseLease(l)
}

// TestLeaseCalls: within one piece the disk fills the caller's own lease, in one
// call and however large it is; across pieces each disk is asked once.
func TestLeaseCalls(t *testing.T) {
	var calls []string
	a := &disk{Device: newMem(t, 2<<20, nil), name: "a", calls: &calls}
	b := &disk{Device: newMem(t, 2<<20, nil), name: "b", calls: &calls}
	d, err := New("t", []Run{
		{Len: 1 << 20, Stripes: []Stripe{{Dev: a, Off: 4096, Disk: true}}},
		{Len: 1 << 20, Stripes: []Stripe{{Dev: b, Disk: true}}},
		{Len: 65536, Stripes: []Stripe{{Dev: b, Off: 1 << 20}}}, // as a volume on a volume
	})
	if err != nil {
		t.Fatal(err)
	}
	var l blockdev.Lease
	for _, c := range []struct {
		off  int64
		n    int
		want string
		own  bool
	}{
		{8192, 65536, "write a 12288+65536; blocks a 12288+65536; commit a 12288+65536; release a 12288+65536", true},
		{1 << 20, 1 << 20, "write b 0+1048576; blocks b 0+1048576; commit b 0+1048576; release b 0+1048576", true},
		{1<<20 - 4096, 8192, "write a 1048576+4096; write b 0+4096; blocks a 1048576+4096; blocks b 0+4096; commit a 1048576+4096; commit b 0+4096; release a 1048576+4096; release b 0+4096", false},
		{2 << 20, 4096, "write b 1048576+4096; blocks b 1048576+4096; commit b 1048576+4096; release b 1048576+4096", false},
		{0, 512, "write a 4096+512; blocks a 4096+512; commit a 4096+512; release a 4096+512", true},
	} {
		calls = calls[:0]
		if err := d.LeaseWrite(&l, c.off, c.n, blockdev.Wait); err != nil {
			t.Fatal(err)
		}
		if own := a.last == &l || b.last == &l; own != c.own || l.Off != c.off || l.Len != c.n || !l.Write || l.Owner != blockdev.Lender(d) {
			t.Errorf("%d+%d: filled by the disk itself: %v; %+v", c.off, c.n, own, l)
		}
		l.MayBlock(false)
		if err := l.Commit(false); err != nil || l.Off != c.off {
			t.Errorf("%v, at %d", err, l.Off)
		}
		l.Release()
		a.last, b.last = nil, nil
		if got := strings.Join(calls, "; "); got != c.want {
			t.Errorf("%d+%d:\n%s, not\n%s", c.off, c.n, got, c.want)
		}
	}
	plain, err := New("t", []Run{{Len: 1 << 20, Stripes: []Stripe{{Dev: a.Device, Off: 4096, Disk: true}}}})
	if err != nil {
		t.Fatal(err)
	}
	if n := alloctest.PerRun(100, func() {
		if err := plain.LeaseRead(&l, 8192, 65536, blockdev.Wait); err != nil {
			t.Fatal(err)
		}
		l.Release()
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
