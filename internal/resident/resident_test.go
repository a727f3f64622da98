package resident

import (
	"sync"
	"testing"

	"softiser/internal/leaktest"
)

// slab is where the spans of the tests lie: memory on a stack would move.
var slab = make([]byte, 1000)

func TestMain(m *testing.M) { leaktest.Main(m) }

// What has been entered is known as long as it is, up to its edges and no further.
func TestHolds(t *testing.T) {
	known := func(lo, hi int) bool { return Holds(slab[lo:hi]) }
	if known(0, 1) {
		t.Error("memory is known before any has been entered")
	}
	second := Add(slab[400:500])
	first := Add(slab[100:200])
	third := Add(slab[500:600])
	for _, c := range []struct {
		lo, hi int
		want   bool
	}{
		{100, 200, true}, {150, 151, true}, {199, 200, true}, {100, 101, true},
		{99, 101, false}, {199, 201, false}, {0, 50, false}, {250, 300, false}, {700, 800, false},
		{400, 500, true}, {500, 600, true}, {599, 600, true},
		{450, 550, false}, // in two of them
		{100, 450, false},
	} {
		if got := known(c.lo, c.hi); got != c.want {
			t.Errorf("[%d, %d): %v, want %v", c.lo, c.hi, got, c.want)
		}
	}
	second()
	if known(400, 500) || !known(100, 200) || !known(500, 600) {
		t.Error("not the one was taken out that was meant")
	}
	first()
	third()
	if known(100, 200) || known(500, 600) {
		t.Error("memory is known that was taken out")
	}
}

// Who looks is not disturbed by who changes the list.
func TestHoldsMeanwhile(t *testing.T) {
	defer Add(slab[:100])()
	var wg sync.WaitGroup
	for i := 1; i < 5; i++ {
		wg.Go(func() {
			for range 200 {
				Add(slab[i*100 : i*100+50])()
			}
		})
	}
	for range 1000 {
		if !Holds(slab[10:20]) || Holds(slab[90:110]) {
			t.Error("the list was seen half changed")
			break
		}
	}
	wg.Wait()
}

func BenchmarkHolds(b *testing.B) {
	defer Add(slab)()
	for b.Loop() {
		if !Holds(slab[:512]) {
			b.Fatal("unknown")
		}
	}
}
