package resident

import (
	"runtime/debug"
	"testing"

	"golang.org/x/sys/unix"

	"softiser/internal/alloctest"
	"softiser/internal/faultmap"
)

// What has been touched is in memory, to the page, however long it is; asking touches nothing.
func TestInMemory(t *testing.T) {
	size := int(pageSize)
	p := faultmap.Untouched(t, 100*int(pageSize))
	for i := 10; i < 80; i++ {
		p[i*size] = 1
	}
	for _, c := range []struct {
		lo, hi int
		want   bool
	}{
		{10 * size, 80 * size, true}, {10*size + 5, 10*size + 6, true}, {80*size - 1, 80 * size, true}, {11*size - 1, 11*size + 1, true},
		{10*size - 1, 10*size + 1, false}, {10 * size, 80*size + 1, false}, {79 * size, 81 * size, false},
		{0, 1, false}, {9 * size, 10 * size, false}, {80 * size, 100 * size, false},
	} {
		for range 2 {
			if got := InMemory(p[c.lo:c.hi]); got != c.want {
				t.Errorf("[%d, %d): %v, want %v", c.lo, c.hi, got, c.want)
			}
		}
	}
	if n := alloctest.PerRun(100, func() { InMemory(p) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// Asked asks for what follows as well, once, and a mapping that is known is not asked for.
func TestAsked(t *testing.T) {
	size := int(pageSize)
	p := faultmap.Untouched(t, (pagesAsked+10)*size)
	for i := range pagesAsked {
		p[i*size] = 1
	}
	var a Asked
	if !a.There(p, 100) {
		t.Fatal("what is in memory is not found, with what is beyond one call missing")
	}
	if err := unix.Madvise(p, unix.MADV_DONTNEED); err != nil {
		t.Fatal(err)
	}
	if !a.There(p[5*size:], 7*size) || !a.There(p[(pagesAsked-1)*size:], size) {
		t.Error("what has been asked for is asked for again")
	}
	if a.There(p[(pagesAsked-1)*size:], size+1) || a.There(p[pagesAsked*size:], 1) {
		t.Error("what has not been asked for counts as in memory")
	}
	p[0] = 1
	if a = (Asked{}); a.There(p, size) {
		t.Error("what follows is missing, and it was not asked for")
	}
	if !a.There(p[:size], 2*size) || a.There(p[1:], size) {
		t.Error("more was asked for than there is")
	}
	defer Add(p[20*size : 30*size])()
	if !a.There(p[20*size:], size) || a.There(p[20*size:], 11*size) {
		t.Error("a mapping that is known is not known")
	}
	if n := alloctest.PerRun(100, func() { a = Asked{}; a.There(p[:size], size) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// Load reads to the last byte: that may lie in a line, or a page, that none of its steps meets.
func TestLoadReadsTheLastLine(t *testing.T) {
	size := int(pageSize)
	p := faultmap.Untouched(t, 2*int(pageSize))
	clear(p)
	Load(p[size-20 : size])
	if err := unix.Mprotect(p[size:], unix.PROT_NONE); err != nil {
		t.Fatal(err)
	}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	for _, n := range []int{21, 63, 64, 84, 148} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("the last of %d bytes was not read", n)
				}
			}()
			Load(p[size-20:][:n])
		}()
	}
}
