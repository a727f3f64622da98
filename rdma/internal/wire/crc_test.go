package wire

import (
	"hash/crc32"
	"math/rand/v2"
	"testing"
)

// TestCRCAgainstLibrary: every length around the blocks, every alignment, and
// continuing from any register give what hash/crc32 gives.
func TestCRCAgainstLibrary(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	mem := make([]byte, 70<<10)
	for i := range mem {
		mem[i] = byte(r.Uint32())
	}
	check := func(at, n int, start uint32) {
		t.Helper()
		p := mem[at : at+n]
		if got, want := CRC(start, p), crc32.Update(start, castagnoli, p); got != want {
			t.Fatalf("%d bytes at %d from %#08x: %#08x, want %#08x", n, at, start, got, want)
		}
	}
	for n := range 2100 {
		check(n%67, n, 0)
		check(0, n, r.Uint32())
	}
	for at := range 130 {
		check(at, 61440, r.Uint32())
		check(at, 65535, ^uint32(0))
	}
}

func FuzzCRC(f *testing.F) {
	f.Add(uint32(0), make([]byte, 512), 100)
	f.Add(^uint32(0), []byte("123456789"), 3)
	f.Fuzz(func(t *testing.T, start uint32, p []byte, cut int) {
		want := crc32.Update(start, castagnoli, p)
		if got := CRC(start, p); got != want {
			t.Fatalf("%#08x, want %#08x", got, want)
		}
		if cut > 0 && cut < len(p) {
			if got := CRC(CRC(start, p[:cut]), p[cut:]); got != want {
				t.Fatalf("in two parts: %#08x, want %#08x", got, want)
			}
		}
	})
}

// BenchmarkCRCMemory: one buffer that stays in the cache, and walking over 256 MiB that
// do not; ours against the library.
func BenchmarkCRCMemory(b *testing.B) {
	const piece = 60 << 10
	mem := make([]byte, 256<<20)
	for i := 0; i < len(mem); i += 64 {
		mem[i] = byte(i)
	}
	lib := func(crc uint32, p []byte) uint32 { return crc32.Update(crc, castagnoli, p) }
	for _, c := range []struct {
		name string
		f    func(uint32, []byte) uint32
		walk bool
	}{{"cached/ours", CRC, false}, {"cached/library", lib, false}, {"memory/ours", CRC, true}, {"memory/library", lib, true}} {
		b.Run(c.name, func(b *testing.B) {
			b.SetBytes(piece)
			at := 0
			for b.Loop() {
				c.f(0, mem[at:at+piece])
				if c.walk {
					if at += piece; at > len(mem)-piece {
						at = 0
					}
				}
			}
		})
	}
}
