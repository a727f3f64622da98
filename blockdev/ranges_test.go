package blockdev

import (
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestRangesRules(t *testing.T) {
	const mib = 1 << 20
	for _, c := range []struct {
		name   string
		first  span
		second span
		want   bool
	}{
		{"reads share", span{0, 4096, tagRead}, span{0, 4096, tagRead}, true},
		{"write after read", span{0, 4096, tagRead}, span{4095, 8192, tagWrite}, false},
		{"read after write", span{0, 4096, tagWrite}, span{0, 1, tagRead}, false},
		{"write after write", span{0, 4096, tagWrite}, span{0, 4096, tagWrite}, false},
		{"neighbours", span{0, 4096, tagWrite}, span{4096, 8192, tagWrite}, true},
		{"neighbours below", span{4096, 8192, tagWrite}, span{0, 4096, tagWrite}, true},
		{"same shard, far apart", span{0, 4096, tagWrite}, span{64 * mib, 64*mib + 4096, tagWrite}, true},
		{"across shards", span{mib - 1, mib + 1, tagWrite}, span{mib, 2 * mib, tagRead}, false},
		{"many shards", span{0, 1000 * mib, tagWrite}, span{999 * mib, 1001 * mib, tagWrite}, false},
		{"many shards, beside", span{0, 1000 * mib, tagWrite}, span{1000 * mib, 1001 * mib, tagWrite}, true},
		{"end of the world", span{math.MaxInt64 - 4096, math.MaxInt64, tagWrite}, span{0, 4096, tagWrite}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			var r Ranges
			if !r.try(c.first) {
				t.Fatal("the first range was refused")
			}
			if got := r.try(c.second); got != c.want {
				t.Fatalf("second range: %v, want %v", got, c.want)
			} else if got {
				r.remove(c.second)
			}
			if n := r.Open(); n != 1 {
				t.Errorf("Open = %d, want 1", n)
			}
			r.remove(c.first)
			if !r.try(c.second) {
				t.Error("refused although nothing is out")
			}
		})
	}
}

func TestRangesDoubleReturn(t *testing.T) {
	var r Ranges
	r.TryRead(0, 4096)
	r.EndRead(0, 4096)
	defer func() {
		if recover() == nil {
			t.Error("a range was given back twice without a panic")
		}
	}()
	r.EndRead(0, 4096)
}

func TestRangesOpenBeyond(t *testing.T) {
	var r Ranges
	r.TryRead(0, 4096)
	r.TryWrite(1<<20-512, 1024)
	if n := r.OpenBeyond(1 << 20); n != 1 {
		t.Errorf("OpenBeyond = %d, want 1", n)
	}
	if n := r.OpenBeyond(1<<20 + 512); n != 0 {
		t.Errorf("OpenBeyond = %d, want 0", n)
	}
}

func TestExclusive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r Ranges
		r.TryRead(0, 4096)
		order := make(chan int, 3)
		for i := range 3 {
			go func() {
				ticket, quiet := r.Exclusive(0, 8192, time.Hour)
				if !quiet {
					t.Error("ran out of patience")
				}
				order <- i
				r.EndExclusive(0, 8192, ticket)
			}()
			synctest.Wait()
		}
		// While somebody waits, nothing new is direct.
		if r.TryRead(4096, 512) || r.TryWrite(4096, 512) {
			t.Error("a lease was lent inside a claimed range")
		}
		if !r.TryWrite(8192, 512) {
			t.Error("a lease beside the claimed range was refused")
		}
		r.EndRead(0, 4096)
		for want := range 3 {
			if got := <-order; got != want {
				t.Errorf("claim %d came before %d", got, want)
			}
		}
		synctest.Wait()
		if n := r.Open(); n != 1 {
			t.Errorf("Open = %d, want the lease beside", n)
		}
	})
}

func TestExclusivePatience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r Ranges
		r.TryWrite(0, 4096)
		began := time.Now()
		ticket, quiet := r.Exclusive(0, 4096, time.Second)
		if quiet {
			t.Error("claims that nobody else has the range")
		}
		if d := time.Since(began); d != time.Second {
			t.Errorf("waited %v, want 1s", d)
		}
		r.EndExclusive(0, 4096, ticket)
		r.EndWrite(0, 4096)
		if n := r.Open(); n != 0 {
			t.Errorf("Open = %d", n)
		}
	})
}

// TestShared: a copy out of the device waits for the copies into it that came
// before, and for nothing else; later ones wait for it.
func TestShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r Ranges
		r.TryWrite(0, 512) // a lease: left alone
		first := r.Shared(0, 4096)
		if !r.TryRead(512, 512) {
			t.Error("a lease for reading was refused beside a copy out of the device")
		}
		if r.TryWrite(1024, 512) {
			t.Error("a lease for writing was lent where a copy reads")
		}
		if beside, ok := r.TryShared(0, 512); !ok {
			t.Error("a copy out of the device was refused beside another one")
		} else {
			r.EndShared(0, 512, beside)
		}
		order := make(chan string, 3)
		var into uint64
		go func() {
			into, _ = r.Exclusive(0, 4096, time.Millisecond)
			order <- "into"
		}()
		synctest.Wait()
		go func() {
			out := r.Shared(0, 512)
			order <- "out"
			r.EndShared(0, 512, out)
		}()
		time.Sleep(time.Hour) // patience is for leases, which peers hold
		r.EndRead(512, 512)
		synctest.Wait()
		if n := len(order); n != 0 {
			t.Fatalf("%s did not wait for an older copy", <-order)
		}
		r.EndShared(0, 4096, first)
		if got := <-order; got != "into" {
			t.Errorf("%s came first, want the copy into the device", got)
		}
		open := r.Open()
		if _, ok := r.TryShared(0, 512); ok || r.Open() != open {
			t.Errorf("beside a copy into the device: claimed %v, %d ranges are out, %d before", ok, r.Open(), open)
		}
		synctest.Wait()
		if n := len(order); n != 0 {
			t.Errorf("a copy out of the device went on beside one into it")
		}
		r.EndExclusive(0, 4096, into)
		if got := <-order; got != "out" {
			t.Errorf("%s came last", got)
		}
		r.EndWrite(0, 512)
		synctest.Wait()
		if n := r.Open(); n != 0 {
			t.Errorf("%d ranges are left", n)
		}
	})
}

// TestRangesModel runs random leases and claims on few places and checks by
// counters per cell that the rules hold at every moment.
func TestRangesModel(t *testing.T) {
	const cell, cells = 256 << 10, 16
	var r Ranges
	var readers, writers, claimed, copying [cells]atomic.Int32
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(7, uint64(g)))
			for range 3000 {
				first := rnd.IntN(cells)
				n := 1 + rnd.IntN(min(4, cells-first))
				off, length := int64(first)*cell, int64(n)*cell
				switch rnd.IntN(4) {
				case 0:
					if r.TryRead(off, length) {
						for i := first; i < first+n; i++ {
							readers[i].Add(1)
							if writers[i].Load() != 0 {
								t.Error("reader beside a writer")
							}
						}
						for i := first; i < first+n; i++ {
							readers[i].Add(-1)
						}
						r.EndRead(off, length)
					}
				case 1:
					if r.TryWrite(off, length) {
						for i := first; i < first+n; i++ {
							if writers[i].Add(1) != 1 || readers[i].Load() != 0 {
								t.Error("writer beside another lease")
							}
						}
						for i := first; i < first+n; i++ {
							writers[i].Add(-1)
						}
						r.EndWrite(off, length)
					}
				case 2:
					ticket, quiet := r.Exclusive(off, length, time.Minute)
					if !quiet {
						t.Error("a claim starved")
					}
					for i := first; i < first+n; i++ {
						if writers[i].Add(1) != 1 || readers[i].Load() != 0 {
							t.Error("claim beside a lease")
						}
						if claimed[i].Add(1); copying[i].Load() != 0 {
							t.Error("claim beside a copy out of the device")
						}
					}
					for i := first; i < first+n; i++ {
						writers[i].Add(-1)
						claimed[i].Add(-1)
					}
					r.EndExclusive(off, length, ticket)
				case 3:
					ticket := r.Shared(off, length)
					for i := first; i < first+n; i++ {
						if copying[i].Add(1); claimed[i].Load() != 0 {
							t.Error("copy out of the device beside a claim")
						}
					}
					for i := first; i < first+n; i++ {
						copying[i].Add(-1)
					}
					r.EndShared(off, length, ticket)
				}
			}
		})
	}
	wg.Wait()
	if n := r.Open(); n != 0 {
		t.Errorf("%d ranges are left", n)
	}
}

func BenchmarkRanges(b *testing.B) {
	for _, open := range []int{0, 32, 128} {
		b.Run(map[int]string{0: "open=0", 32: "open=32", 128: "open=128"}[open], func(b *testing.B) {
			var r Ranges
			for i := range open {
				r.TryRead(int64(i)*4096, 4096) // all in one shard: the worst case
			}
			b.ReportAllocs()
			for b.Loop() {
				r.TryWrite(900<<10, 4096)
				r.EndWrite(900<<10, 4096)
			}
		})
	}
}
