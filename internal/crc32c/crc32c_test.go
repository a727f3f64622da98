package crc32c

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"testing"
)

// TestAgainstLibrary: every length around the blocks, every alignment, and
// continuing from any register give what hash/crc32 gives.
func TestAgainstLibrary(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	mem := make([]byte, 70<<10)
	for i := range mem {
		mem[i] = byte(r.Uint32())
	}
	dst := make([]byte, len(mem)+128)
	check := func(at, n int, start uint32) {
		t.Helper()
		p := mem[at : at+n]
		d := dst[(at+3*n)%64:][:n+1]
		clear(d)
		d[n] = 0x5a
		if got, want := CopyIEEE(start, d, p), crc32.Update(start, crc32.IEEETable, p); got != want || !bytes.Equal(d[:n], p) || d[n] != 0x5a {
			t.Fatalf("copied: %d bytes at %d from %#08x: %#08x, want %#08x, equal %v, %#x behind them", n, at, start, got, want, bytes.Equal(d[:n], p), d[n])
		}
		if got, want := Update(start, p), crc32.Update(start, castagnoli, p); got != want {
			t.Fatalf("%d bytes at %d from %#08x: %#08x, want %#08x", n, at, start, got, want)
		}
		if got, want := UpdateIEEE(start, p), crc32.Update(start, crc32.IEEETable, p); got != want {
			t.Fatalf("IEEE: %d bytes at %d from %#08x: %#08x, want %#08x", n, at, start, got, want)
		}
	}
	for n := range 4201 {
		check(n%67, n, 0)
		check(0, n, r.Uint32())
	}
	for at := range 130 {
		check(at, 61440, r.Uint32())
		check(at, 65535, ^uint32(0))
	}
}

// TestVectors: the examples of RFC 7143 appendix A.4 (RFC 3720 B.4), and the digest of a
// whole data segment of which folding takes all but the end.
func TestVectors(t *testing.T) {
	seq := func(n int, f func(i int) byte) []byte {
		b := make([]byte, n)
		for i := range b {
			b[i] = f(i)
		}
		return b
	}
	read := []byte{0x01, 0xc0, 0x00, 0x00, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x14, 0, 0, 0, 0, 0, 0x04, 0,
		0, 0, 0, 0x14, 0, 0, 0, 0x18, 0x28, 0, 0, 0, 0, 0, 0, 0, 0x02, 0, 0, 0, 0, 0, 0, 0}
	for _, c := range []struct {
		name string
		p    []byte
		wire [4]byte
	}{
		{"nothing", nil, [4]byte{}},
		{"32 bytes of zeroes", make([]byte, 32), [4]byte{0xaa, 0x36, 0x91, 0x8a}},
		{"32 bytes of ones", seq(32, func(int) byte { return 0xff }), [4]byte{0x43, 0xab, 0xa8, 0x62}},
		{"32 bytes counting up", seq(32, func(i int) byte { return byte(i) }), [4]byte{0x4e, 0x79, 0xdd, 0x46}},
		{"32 bytes counting down", seq(32, func(i int) byte { return byte(31 - i) }), [4]byte{0x5c, 0xdb, 0x3f, 0x11}},
		{"a READ(10) PDU", read, [4]byte{0x56, 0x3a, 0x96, 0xd9}},
		{"123456789", []byte("123456789"), [4]byte{0x83, 0x92, 0x06, 0xe3}},
	} {
		if got := binary.LittleEndian.AppendUint32(nil, Update(0, c.p)); !bytes.Equal(got, c.wire[:]) {
			t.Errorf("%s: % x, want % x", c.name, got, c.wire)
		}
	}
}

// BenchmarkHeader: what is computed for every message, whatever it carries.
func BenchmarkHeader(b *testing.B) {
	lib := func(crc uint32, p []byte) uint32 { return crc32.Update(crc, castagnoli, p) }
	mem := make([]byte, 128)
	for _, n := range []int{0, 16, 20, 112} {
		for _, c := range []struct {
			name string
			f    func(uint32, []byte) uint32
		}{{"ours", Update}, {"library", lib}, {"IEEE", UpdateIEEE}, {"IEEE of the library", func(crc uint32, p []byte) uint32 { return crc32.Update(crc, crc32.IEEETable, p) }}} {
			b.Run(fmt.Sprintf("%d/%s", n, c.name), func(b *testing.B) {
				crc := uint32(0)
				for b.Loop() {
					crc = c.f(crc, mem[:n])
				}
			})
		}
	}
}
