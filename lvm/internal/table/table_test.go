package table

import (
	"testing"

	"softiser/blockdev"
	"softiser/blockdev/blockdevtest"
	"softiser/blockdev/mem"
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
			{Len: first, Stripes: []Stripe{{a, 65536}}},
			{Len: size - first, Stripes: []Stripe{{b, 0}}},
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
		d, err := New("t", []Run{{Len: size, Chunk: 16384, Stripes: []Stripe{{a, 0}, {b, 4096}}}})
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
		{Len: 3 * 8192, Chunk: 4096, Stripes: []Stripe{{a, 0}, {b, 4096}, {c, 8192}}},
		{Len: 4096, Stripes: []Stripe{{a, 65536}}},
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
		{Len: 0, Stripes: []Stripe{{a, 0}}},
		{Len: 4096},
		{Len: 4096, Stripes: []Stripe{{a, 1 << 20}}},
		{Len: 4096, Stripes: []Stripe{{a, -4096}}},
		{Len: 4096, Stripes: []Stripe{{a, 100}}},
		{Len: 12288, Chunk: 4096, Stripes: []Stripe{{a, 0}, {a, 8192}}},
		{Len: 8192, Stripes: []Stripe{{a, 0}, {a, 8192}}},
	} {
		if _, err := New("t", []Run{r}); err == nil {
			t.Errorf("%+v accepted", r)
		}
	}
}

func BenchmarkLease(b *testing.B) {
	m := newMem(b, 64<<20, nil)
	d, err := New("t", []Run{{Len: 32 << 20, Stripes: []Stripe{{m, 1 << 20}}}})
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
