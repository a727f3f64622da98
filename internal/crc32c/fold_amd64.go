package crc32c

import "hash/crc32"

// On processors with 512-bit carry-less multiplication the bulk of a CRC is
// computed by folding, as in V. Gopal et al., "Fast CRC Computation for Generic
// Polynomials Using PCLMULQDQ Instruction" (Intel, 2009): 256 bytes of the message
// are replaced by what they are worth 2048 bits further on, until 64 are left. It
// reads one stream from front to back, as the processor's prefetcher expects. The
// standard library's three interleaved streams of a page are half as fast over
// memory that is not in the cache, which is where READ payload comes from.

// foldMin is the length from which folding pays; a multiple of foldBlock, and two
// of them at least.
const (
	foldMin   = 2 * foldBlock
	foldBlock = 256
)

// foldKeys are the multipliers. Each pair moves 128 bits by d bits: the low half
// of the message, which is the part of higher degree, by d+32, the high half by
// d-32; 32 because a CRC is the remainder of the message times x^32.
type foldKeys struct {
	block [2]uint64    // 2048 bits: 256 bytes
	line  [2]uint64    // 512 bits: 64 bytes
	lanes [4][2]uint64 // within a line: 384, 256 and 128 bits; the last one stays
}

var (
	keys    = newFoldKeys()
	canFold = hasVPCLMUL512()
	canStep = hasSSE42()
)

// stepMax is below which the library would take the bytes eight at a time, too. Headers,
// trailers and commands are that short; on the way there through the library's choices
// they would spend more time than in the CRC.
const stepMax = 504

func newFoldKeys() *foldKeys {
	pair := func(d int) [2]uint64 { return [2]uint64{power(d + 32), power(d - 32)} }
	return &foldKeys{block: pair(2048), line: pair(512), lanes: [4][2]uint64{pair(384), pair(256), pair(128)}}
}

// power is x^n modulo the polynomial, bits reversed as the CRC has them, and one
// place up, because the product of two reversed numbers comes out one place low.
func power(n int) uint64 {
	r := uint32(1 << 31)
	for range n {
		if r&1 != 0 {
			r = r>>1 ^ crc32.Castagnoli
		} else {
			r >>= 1
		}
	}
	return uint64(r) << 1
}

// Update continues a CRC32C over p; start with 0.
func Update(crc uint32, p []byte) uint32 {
	if canFold && len(p) >= foldMin {
		n := len(p) &^ (foldBlock - 1)
		crc = ^fold(^crc, p[:n], keys)
		p = p[n:]
	}
	if canStep && len(p) < stepMax {
		return ^step(^crc, p)
	}
	return crc32.Update(crc, castagnoli, p)
}

// fold continues the register of a CRC over p.
// Preconditions: len(p) is a multiple of foldBlock and at least foldMin.
//
//go:noescape
func fold(reg uint32, p []byte, k *foldKeys) uint32

// step continues the register of a CRC over p with the processor's CRC32 instruction.
//
//go:noescape
func step(reg uint32, p []byte) uint32

// hasSSE42 reports whether the processor has CRC32.
func hasSSE42() bool {
	const sse42 = 1 << 20
	_, _, c, _ := cpuid(1, 0)
	return c&sse42 != 0
}

// hasVPCLMUL512 reports whether processor and system have AVX-512 (F, VL, DQ) and
// VPCLMULQDQ on 512 bits.
func hasVPCLMUL512() bool {
	if maxLeaf, _, _, _ := cpuid(0, 0); maxLeaf < 7 {
		return false
	}
	const osxsave = 1 << 27
	if _, _, c, _ := cpuid(1, 0); c&osxsave == 0 {
		return false
	}
	const state = 1<<1 | 1<<2 | 7<<5 // XMM, YMM, and the three parts of AVX-512
	if xgetbv()&state != state {
		return false
	}
	const f, dq, vl, vpclmul = 1 << 16, 1 << 17, 1 << 31, 1 << 10
	_, b, c, _ := cpuid(7, 0)
	return b&(f|dq|vl) == f|dq|vl && c&vpclmul != 0
}

func cpuid(leaf, sub uint32) (a, b, c, d uint32)

// xgetbv is the low half of XCR0: the register state that the system saves.
func xgetbv() uint32
