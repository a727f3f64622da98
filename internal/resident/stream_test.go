package resident

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
)

// TestStream compares Stream with copy for every alignment of both sides and lengths around those of lines.
func TestStream(t *testing.T) {
	t.Parallel()
	lengths := []int{0, 1, 63, 64, 65, 127, 128, 129, 191, 192, 193, 255, 256, 512, 4095, 4096, 4097}
	r := rand.NewChaCha8([32]byte{1})
	src, got, want := make([]byte, 8192), make([]byte, 8192), make([]byte, 8192)
	r.Read(src)
	r.Read(want)
	copy(got, want)
	for to := range line + 1 {
		for _, from := range []int{0, 1, 12, 16, 63, 64} {
			for _, n := range lengths {
				if k := Stream(got[to:to+n], src[from:from+n]); k != n {
					t.Fatalf("Stream of %d bytes from %d to %d says %d", n, from, to, k)
				}
				copy(want[to:to+n], src[from:])
				if !bytes.Equal(got, want) {
					t.Fatalf("Stream of %d bytes from %d to %d differs from copy", n, from, to)
				}
				r.Read(src[from : from+n]) // what is copied next time differs
			}
		}
	}
	if n := Stream(got[:100], src); n != 100 {
		t.Errorf("Stream to 100 bytes says %d", n)
	}
	if n := Stream(got, src[:200]); n != 200 {
		t.Errorf("Stream of 200 bytes says %d", n)
	}
	copy(want, src[:200])
	if !bytes.Equal(got, want) {
		t.Error("Stream copies more than the shorter of both")
	}
}

// BenchmarkStream copies 4 KiB to a random place of a large memory, and of one that stays in the caches.
func BenchmarkStream(b *testing.B) {
	src := make([]byte, 64*4096)
	for _, size := range []int{1 << 30, 4 << 20} {
		mem := make([]byte, size)
		for i := 0; i < size; i += 4096 {
			mem[i] = 1
		}
		for _, way := range []struct {
			name string
			copy func(dst, src []byte) int
		}{
			{"copy", func(dst, src []byte) int { return copy(dst, src) }},
			{"stream", Stream},
		} {
			b.Run(fmt.Sprintf("%dMiB/%s", size>>20, way.name), func(b *testing.B) {
				b.SetBytes(4096)
				r := rand.New(rand.NewPCG(1, 2))
				for i := range b.N {
					way.copy(mem[r.IntN(size/4096)*4096:][:4096], src[i%64*4096:])
				}
			})
		}
	}
}
