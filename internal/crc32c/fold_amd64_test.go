package crc32c

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"testing"
)

var widths = []width{noFolding, width128, width256, width512}

func (w width) String() string { return fmt.Sprintf("%d bits", int(w)) }

// atWidth has Update fold by w until the test is over.
func atWidth(t testing.TB, w width) {
	t.Helper()
	if w > widest() {
		t.Skipf("this processor multiplies %v at most", widest())
	}
	was := folding
	folding = w
	t.Cleanup(func() { folding = was })
}

// TestWidths: with every width that the processor has, every length around the blocks, every
// alignment, every way of cutting in two and any register give what hash/crc32 gives.
func TestWidths(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	mem := make([]byte, 70<<10)
	for i := range mem {
		mem[i] = byte(r.Uint32())
	}
	for _, w := range widths {
		t.Run(w.String(), func(t *testing.T) {
			atWidth(t, w)
			check := func(at, n, cut int, start uint32) {
				t.Helper()
				p := mem[at : at+n]
				want := crc32.Update(start, castagnoli, p)
				if got := Update(start, p); got != want {
					t.Fatalf("%d bytes at %d from %#08x: %#08x, want %#08x", n, at, start, got, want)
				}
				if got := Update(Update(start, p[:cut]), p[cut:]); got != want {
					t.Fatalf("%d bytes at %d from %#08x, cut at %d: %#08x, want %#08x", n, at, start, cut, got, want)
				}
				if got := UpdateWarm(start, p); got != want {
					t.Fatalf("warm: %d bytes at %d from %#08x: %#08x, want %#08x", n, at, start, got, want)
				}
				want = crc32.Update(start, crc32.IEEETable, p)
				if got := UpdateIEEE(start, p); got != want {
					t.Fatalf("IEEE: %d bytes at %d from %#08x: %#08x, want %#08x", n, at, start, got, want)
				}
				if got := UpdateIEEE(UpdateIEEE(start, p[:cut]), p[cut:]); got != want {
					t.Fatalf("IEEE: %d bytes at %d from %#08x, cut at %d: %#08x, want %#08x", n, at, start, cut, got, want)
				}
			}
			for n := range 4097 {
				check(n%67, n, r.IntN(n+1), 0)
				check(0, n, n/2, r.Uint32())
			}
			for n := 7 << 10; n < 60<<10; n += 509 {
				check(n%61, n, 7<<10, r.Uint32())
			}
			for at := range 130 {
				check(at, 61440, 256*at, r.Uint32())
				check(at, 65535, at, ^uint32(0))
			}
		})
	}
}

func FuzzUpdate(f *testing.F) {
	f.Add(uint32(0), make([]byte, 512), 100)
	f.Add(^uint32(0), []byte("123456789"), 3)
	f.Fuzz(func(t *testing.T, start uint32, p []byte, cut int) {
		want := crc32.Update(start, castagnoli, p)
		for _, w := range widths {
			if w > widest() {
				break
			}
			atWidth(t, w)
			if got := Update(start, p); got != want {
				t.Fatalf("by %v: %#08x, want %#08x", w, got, want)
			}
			if got := UpdateWarm(start, p); got != want {
				t.Fatalf("warm, by %v: %#08x, want %#08x", w, got, want)
			}
			if got, want := UpdateIEEE(start, p), crc32.Update(start, crc32.IEEETable, p); got != want {
				t.Fatalf("IEEE by %v: %#08x, want %#08x", w, got, want)
			}
			dst := make([]byte, len(p))
			if got, want := CopyIEEE(start, dst, p), crc32.Update(start, crc32.IEEETable, p); got != want || !bytes.Equal(dst, p) {
				t.Fatalf("IEEE by %v, copied: %#08x, want %#08x", w, got, want)
			}
			if cut > 0 && cut < len(p) {
				if got := Update(Update(start, p[:cut]), p[cut:]); got != want {
					t.Fatalf("by %v, in two parts: %#08x, want %#08x", w, got, want)
				}
			}
		}
	})
}

// BenchmarkUpdate compares the widths that the processor has with the library and, for the
// bound of the memory, with a copy: of lengths that stay in the cache, and walking over
// 1 GiB, which does not.
func BenchmarkUpdate(b *testing.B) {
	mem, to := make([]byte, 1<<30), make([]byte, 1<<20)
	for i := 0; i < len(mem); i += 4096 {
		mem[i] = byte(i >> 12)
	}
	for _, c := range []struct {
		name  string
		piece int
		walk  bool
	}{
		{"64 cached", 64, false}, {"4KiB cached", 4 << 10, false}, {"60KiB cached", 60 << 10, false}, {"1MiB cached", 1 << 20, false},
		{"4KiB memory", 4 << 10, true}, {"1MiB memory", 1 << 20, true},
	} {
		run := func(name string, f func(p []byte)) {
			b.Run(c.name+"/"+name, func(b *testing.B) {
				b.SetBytes(int64(c.piece))
				at := 0
				for b.Loop() {
					f(mem[at : at+c.piece])
					if c.walk {
						if at += c.piece; at > len(mem)-c.piece {
							at = 0
						}
					}
				}
			})
		}
		for _, w := range widths[1:] {
			if w <= widest() {
				run(w.String(), func(p []byte) { folding = w; Update(0, p) })
			}
		}
		folding = widest()
		run("warm", func(p []byte) { UpdateWarm(0, p) })
		run("IEEE", func(p []byte) { UpdateIEEE(0, p) })
		run("IEEE of the library", func(p []byte) { crc32.Update(0, crc32.IEEETable, p) })
		run("library", func(p []byte) { crc32.Update(0, castagnoli, p) })
		run("copy", func(p []byte) { copy(to, p) })
	}
}
