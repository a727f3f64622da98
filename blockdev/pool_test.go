package blockdev

import (
	"errors"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"softiser/internal/alloctest"
)

func newPool(t testing.TB, limit int64) *Pool {
	p, err := NewPool(limit)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func TestPoolShapes(t *testing.T) {
	p := newPool(t, 8<<20)
	for _, n := range []int{0, 1, 512, 4096, 4097, 65536, 100000, MaxBuffer, MaxBuffer + 1, 5<<20 + 512} {
		bufs, err := p.Get(nil, n, NoWait)
		if err != nil {
			t.Fatal(err)
		}
		sum := 0
		for _, b := range bufs {
			sum += len(b)
			if uintptr(unsafe.Pointer(unsafe.SliceData(b)))%4096 != 0 {
				t.Errorf("a buffer for %d bytes is not page aligned", n)
			}
			for i := range b {
				b[i] = byte(n)
			}
		}
		if sum != n {
			t.Errorf("%d bytes for %d", sum, n)
		}
		p.Put(bufs)
	}
	if p.Out() != 0 {
		t.Errorf("Out = %d", p.Out())
	}
}

// TestPoolModel takes and gives at random and checks that buffers never
// overlap, and that in the end everything joins into the largest ones again.
func TestPoolModel(t *testing.T) {
	p := newPool(t, 4<<20)
	rnd := rand.New(rand.NewPCG(1, 2))
	type held struct {
		bufs [][]byte
		mark byte
	}
	var out []held
	for i := range 5000 {
		if len(out) > 0 && rnd.IntN(2) == 0 {
			k := rnd.IntN(len(out))
			for _, b := range out[k].bufs {
				for _, c := range b {
					if c != out[k].mark {
						t.Fatal("a buffer was written to by another owner")
					}
				}
			}
			p.Put(out[k].bufs)
			out = append(out[:k], out[k+1:]...)
			continue
		}
		n := 1 << (9 + rnd.IntN(12))
		n -= rnd.IntN(n / 2)
		bufs, err := p.Get(nil, n, NoWait)
		if errors.Is(err, ErrWouldBlock) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range bufs {
			for j := range b {
				b[j] = byte(i)
			}
		}
		out = append(out, held{bufs, byte(i)})
	}
	for _, h := range out {
		p.Put(h.bufs)
	}
	bufs, err := p.Get(nil, 4<<20, NoWait)
	if err != nil {
		t.Fatal(err)
	}
	if len(bufs) != 4 {
		t.Errorf("the whole pool comes in %d buffers, want 4: they did not join", len(bufs))
	}
	p.Put(bufs)
}

func TestPoolWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool(t, 1<<20)
		all, err := p.Get(nil, 1<<20, NoWait)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.Get(nil, 512, NoWait); !errors.Is(err, ErrWouldBlock) {
			t.Errorf("NoWait = %v, want ErrWouldBlock", err)
		}
		began := time.Now()
		if _, err := p.Get(nil, 512, Wait); !errors.Is(err, ErrWouldBlock) {
			t.Errorf("Wait = %v, want ErrWouldBlock", err)
		}
		if d := time.Since(began); d != PoolPatience {
			t.Errorf("waited %v, want %v", d, PoolPatience)
		}
		got := make(chan [][]byte)
		go func() {
			b, err := p.Get(nil, 512, Wait)
			if err != nil {
				t.Error(err)
			}
			got <- b
		}()
		synctest.Wait()
		p.Put(all)
		p.Put(<-got)
	})
}

// Who waits is served in order and before others, and goes on waiting as long as memory comes back.
func TestPoolServesInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool(t, 1<<20)
		var held [][][]byte
		for range 4 {
			b, err := p.Get(nil, 256<<10, NoWait)
			if err != nil {
				t.Fatal(err)
			}
			held = append(held, b)
		}
		order := make(chan int, 2)
		wait := func(id, n int) {
			b, err := p.Get(nil, n, Wait)
			if err != nil {
				t.Errorf("waiter %d: %v", id, err)
			}
			order <- id
			p.Put(b)
		}
		go wait(0, 1<<20)
		synctest.Wait()
		go wait(1, 4096)
		for _, b := range held {
			time.Sleep(PoolPatience * 3 / 4)
			p.Put(b)
			synctest.Wait()
			other, err := p.Get(nil, 4096, NoWait)
			if len(order) == 0 && !errors.Is(err, ErrWouldBlock) {
				t.Errorf("somebody else got memory before those who wait: %v", err)
			}
			p.Put(other)
		}
		if a, b := <-order, <-order; a != 0 || b != 1 {
			t.Errorf("served in the order %d, %d", a, b)
		}
	})
}

// After a refusal nobody gets memory in passing until a quarter is free.
func TestPoolShort(t *testing.T) {
	p := newPool(t, 8<<20)
	var held [][][]byte
	for range 8 {
		b, err := p.Get(nil, 1<<20, NoWait)
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, b)
	}
	if _, err := p.Get(nil, 4096, NoWait); !errors.Is(err, ErrWouldBlock) {
		t.Fatalf("Get of an empty pool = %v", err)
	}
	p.Put(held[0])
	if _, err := p.Get(nil, 4096, NoWait); !errors.Is(err, ErrWouldBlock) {
		t.Errorf("Get in passing with an eighth free = %v, want ErrWouldBlock", err)
	}
	b, err := p.Get(nil, 4096, Wait)
	if err != nil {
		t.Errorf("Get of one that may wait, with an eighth free: %v", err)
	}
	p.Put(b)
	p.Put(held[1])
	b, err = p.Get(nil, 4096, NoWait)
	if err != nil {
		t.Errorf("Get in passing with a quarter free: %v", err)
	}
	p.Put(b)
	for _, b := range held[2:] {
		p.Put(b)
	}
}

// Behind one that gives up, those that want less get what there is.
func TestPoolGivingUpServesNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool(t, 1<<20)
		held, err := p.Get(nil, 512<<10, NoWait)
		if err != nil {
			t.Fatal(err)
		}
		gaveUp := make(chan error)
		go func() {
			_, err := p.Get(nil, 1<<20, Wait)
			gaveUp <- err
		}()
		synctest.Wait()
		time.Sleep(PoolPatience / 2)
		small := make(chan [][]byte)
		go func() {
			b, err := p.Get(nil, 4096, Wait)
			if err != nil {
				t.Error(err)
			}
			small <- b
		}()
		if err := <-gaveUp; !errors.Is(err, ErrWouldBlock) {
			t.Errorf("Wait = %v, want ErrWouldBlock", err)
		}
		p.Put(<-small)
		p.Put(held)
	})
}

// Reserved memory and buffers share one bound, and reservations leave half of it.
func TestPoolReserve(t *testing.T) {
	p := newPool(t, 4<<20)
	if p.Reserve(2<<20 + 1) {
		t.Fatal("more than half of the pool was reserved")
	}
	if !p.Reserve(2<<20) || p.Reserve(1) {
		t.Fatal("half of the pool could not be reserved, or more than that")
	}
	bufs, err := p.Get(nil, 2<<20, NoWait)
	if err != nil {
		t.Fatalf("the half that cannot be reserved: %v", err)
	}
	if _, err := p.Get(nil, 1, NoWait); !errors.Is(err, ErrWouldBlock) {
		t.Errorf("a buffer beyond the bound: %v, want ErrWouldBlock", err)
	}
	if p.Out() != 4<<20 || p.Reserved() != 2<<20 {
		t.Errorf("Out = %d, Reserved = %d", p.Out(), p.Reserved())
	}
	p.Unreserve(1 << 20)
	more, err := p.Get(nil, 1<<20, NoWait)
	if err != nil {
		t.Fatalf("a buffer after memory was given back: %v", err)
	}
	if p.Reserve(1) {
		t.Error("reserved what is out as buffers")
	}
	p.Put(more)
	p.Put(bufs)
	p.Unreserve(1 << 20)
	if p.Out() != 0 || p.Reserved() != 0 {
		t.Errorf("at the end: Out = %d, Reserved = %d", p.Out(), p.Reserved())
	}
	defer func() {
		if recover() == nil {
			t.Error("gave back what had not been reserved, without a panic")
		}
	}()
	p.Unreserve(1)
}

func TestPoolMisuse(t *testing.T) {
	p := newPool(t, 1<<20)
	if _, err := p.Get(nil, -1, NoWait); err == nil {
		t.Error("a negative size was accepted")
	}
	if _, err := p.Get(nil, 2<<20, Wait); !errors.Is(err, ErrNoSpace) {
		t.Errorf("more than there is: %v, want ErrNoSpace", err)
	}
	bufs, err := p.Get(nil, 4096, NoWait)
	if err != nil {
		t.Fatal(err)
	}
	b := bufs[0]
	if err := p.Close(); err == nil {
		t.Error("Close with a buffer out succeeded")
	}
	p.Put(bufs)
	for name, buf := range map[string][]byte{"twice": b, "foreign": make([]byte, 4096), "part": b[:0:8]} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: given back without a panic", name)
				}
			}()
			p.Put([][]byte{buf})
		}()
	}
}

func TestPoolAllocations(t *testing.T) {
	p := newPool(t, 4<<20)
	var bufs [][]byte
	if n := alloctest.PerRun(100, func() {
		var err error
		if bufs, err = p.Get(bufs[:0], 100000, NoWait); err != nil {
			t.Fatal(err)
		}
		p.Put(bufs)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkPool(b *testing.B) {
	p := newPool(b, 64<<20)
	for _, n := range []int{4096, 65536, 1 << 20} {
		b.Run(map[int]string{4096: "4K", 65536: "64K", 1 << 20: "1M"}[n], func(b *testing.B) {
			var bufs [][]byte
			b.ReportAllocs()
			for b.Loop() {
				bufs, _ = p.Get(bufs[:0], n, NoWait)
				p.Put(bufs)
			}
		})
	}
}

// A pool has at least one of its largest buffers, and a whole number of them.
func TestPoolSizes(t *testing.T) {
	for limit, want := range map[int64]int64{-1: MaxBuffer, 0: MaxBuffer, 1: MaxBuffer, MaxBuffer: MaxBuffer, MaxBuffer + 1: 2 * MaxBuffer, 1 << 62: 0} {
		p, err := NewPool(limit)
		if (err == nil) != (want != 0) {
			t.Errorf("a pool of %d bytes: %v", limit, err)
		}
		if err != nil {
			continue
		}
		if p.Cap() != want {
			t.Errorf("a pool of %d bytes has %d", limit, p.Cap())
		}
		if _, err := p.Get(nil, int(want)+1, NoWait); !errors.Is(err, ErrNoSpace) {
			t.Errorf("more than a pool has: %v", err)
		}
		all, err := p.Get(nil, int(want), NoWait)
		if err != nil {
			t.Errorf("all that a pool has: %v", err)
		}
		p.Put(all)
		p.Unreserve(0)
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
}
