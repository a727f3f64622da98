package crc32c

import (
	"hash/crc32"
	"math/bits"
	"os"
	"unsafe"
)

// On processors with carry-less multiplication the bulk of a CRC is computed by folding,
// as in V. Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ
// Instruction" (Intel, 2009): a block of the message is replaced by what it is worth one
// block further on, until a part of one is left. It reads one stream from front to back,
// as the processor's prefetcher expects. The standard library's three interleaved streams
// of a page are half as fast over memory that is not in the cache, which is where READ
// payload comes from.

// width is how many bits fold multiplies in one instruction.
type width int

const (
	noFolding width = 0
	width128  width = 128 // PCLMULQDQ, in blocks of 128 bytes
	width256  width = 256 // VPCLMULQDQ with AVX2, in blocks of 256 bytes
	width512  width = 512 // VPCLMULQDQ with AVX-512, in blocks of 256 bytes
)

// foldMin is the length from which folding pays; a multiple of foldBlock, and two
// of them at least. foldBlock is a multiple of every width's block.
const (
	foldMin   = 2 * foldBlock
	foldBlock = 256
)

// foldKeys are the multipliers. Each pair moves 128 bits by d bits: the low half
// of the message, which is the part of higher degree, by d+32, the high half by
// d-32; 32 because a CRC is the remainder of the message times x^32.
type foldKeys struct {
	by2048, by1024, by512, by256, by128 [2]uint64

	lanes [4][2]uint64 // within 64 bytes: 384, 256 and 128 bits; the last one stays

	// What reduces the last 128 bits, of a polynomial without an instruction of its own;
	// zero for Castagnoli's.
	by64, reciprocal, poly uint64
}

var (
	keys             = newFoldKeys(crc32.Castagnoli)
	ieeeKeys         = newFoldKeys(crc32.IEEE).reducing(crc32.IEEE)
	folding, canStep = atStart()
)

// stepMax is below which the library would take the bytes eight at a time, too. Headers,
// trailers and commands are that short; on the way there through the library's choices
// they would spend more time than in the CRC.
const stepMax = 504

// newFoldKeys computes the multipliers for a polynomial, bits reversed.
func newFoldKeys(poly uint32) *foldKeys {
	pair := func(d int) [2]uint64 { return [2]uint64{power(poly, d+32), power(poly, d-32)} }
	return &foldKeys{
		by2048: pair(2048), by1024: pair(1024), by512: pair(512), by256: pair(256), by128: pair(128),
		lanes: [4][2]uint64{pair(384), pair(256), pair(128)},
	}
}

// power is x^n modulo the polynomial, bits reversed as the CRC has them, and one
// place up, because the product of two reversed numbers comes out one place low.
func power(poly uint32, n int) uint64 {
	r := uint32(1 << 31)
	for range n {
		if r&1 != 0 {
			r = r>>1 ^ poly
		} else {
			r >>= 1
		}
	}
	return uint64(r) << 1
}

// reducing adds what the remainder of a division by poly is computed with: x^64, and x^96
// divided by the polynomial without the quotient's own x^64.
func (k *foldKeys) reducing(poly uint32) *foldKeys {
	divisor, rest := 1<<32|uint64(bits.Reverse32(poly)), uint64(1)<<32
	for i := 64; i >= 0; i-- {
		if rest>>32 != 0 {
			rest ^= divisor
			if i < 64 {
				k.reciprocal |= 1 << (63 - i)
			}
		}
		rest <<= 1
	}
	k.by64, k.poly = power(poly, 64), uint64(poly)
	return k
}

// Update continues a CRC32C over p; start with 0.
func Update(crc uint32, p []byte) uint32 {
	if folding != noFolding && len(p) >= foldMin {
		n := len(p) &^ (foldBlock - 1)
		if folding == width128 { // which wants CRC32, too: see widest
			crc = ^beside128(^crc, p[:n], &onward, keys)
		} else {
			crc = ^fold(^crc, p[:n], keys)
		}
		p = p[n:]
	}
	if canStep && len(p) < stepMax {
		return ^step(^crc, p)
	}
	return crc32.Update(crc, castagnoli, p)
}

// UpdateWarm is [Update] for bytes that are in the cache, as what has just been received is: where
// folding is by 256 bits, whose multiplications take as long as the CRC32 instruction, both work
// at once, and nothing is fetched ahead.
func UpdateWarm(crc uint32, p []byte) uint32 {
	if folding == width256 && canStep {
		for i := range joints {
			j := &joints[i]
			for len(p) >= 7*j.lane {
				crc = ^join256(^crc, unsafe.SliceData(p), j.lane, j.by, keys)
				p = p[7*j.lane:]
			}
		}
	}
	return Update(crc, p)
}

// joint is a length that join256 takes: seven lanes, of which four are folded and three summed
// by the processor's instruction. by moves a register on by a lane.
type joint struct {
	lane int // bytes
	by   uint64
}

var joints = [...]joint{newJoint(4 << 10), newJoint(1 << 10)}

func newJoint(lane int) joint { return joint{lane, past(lane)} }

// past is by what a register of CRC32C is multiplied to move on by n bytes: x^(8n - 32), which is what
// zeroes make of x^0, one place up as power has it. The other 32 are those of the CRC32 instruction,
// which reduces the product.
func past(n int) uint64 {
	return uint64(^crc32.Update(^uint32(1<<31), castagnoli, make([]byte, n-4))) << 1
}

// moves move registers on by the lanes of beside128.
type moves struct{ block, two, one uint64 } // past 256, 128 and 64 bytes

var onward = moves{past(256), past(128), past(64)}

// UpdateIEEE is Update for Ethernet's CRC-32.
func UpdateIEEE(crc uint32, p []byte) uint32 {
	if folding == noFolding {
		return crc32.Update(crc, crc32.IEEETable, p)
	}
	if len(p) >= foldMin {
		n := len(p) &^ (foldBlock - 1)
		crc = ^fold(^crc, p[:n], ieeeKeys)
		p = p[n:]
	}
	if n := len(p) &^ 3; n > 0 {
		crc = ^stepBy(^crc, p[:n], ieeeKeys)
		p = p[n:]
	}
	if len(p) == 0 {
		return crc
	}
	return crc32.Update(crc, crc32.IEEETable, p)
}

// CopyIEEE copies p to dst, which is at least as long and does not overlap it, and continues
// Ethernet's CRC-32 over what it has written: in one pass where the processor has the means,
// as bytes that change meanwhile must not be read twice.
func CopyIEEE(crc uint32, dst, p []byte) uint32 {
	dst = dst[:len(p)]
	n := 0
	if folding >= width256 && len(p) >= foldMin {
		n = len(p) &^ (foldBlock - 1)
		crc = ^foldCopy256(^crc, unsafe.SliceData(dst), p[:n], ieeeKeys)
	}
	copy(dst[n:], p[n:])
	return UpdateIEEE(crc, dst[n:])
}

// fold continues the register of a CRC over p. The width is switched on, not called
// through a variable, by which every p would escape to the heap.
// Preconditions: len(p) is a multiple of foldBlock and at least foldMin.
func fold(reg uint32, p []byte, k *foldKeys) uint32 {
	switch folding {
	case width512:
		return fold512(reg, p, k)
	case width256:
		return fold256(reg, p, k)
	default:
		return fold128(reg, p, k)
	}
}

//go:noescape
func fold512(reg uint32, p []byte, k *foldKeys) uint32

//go:noescape
func fold256(reg uint32, p []byte, k *foldKeys) uint32

// foldCopy256 is fold256 that copies p to dst. Preconditions besides: k has what reduces.
//
//go:noescape
func foldCopy256(reg uint32, dst *byte, p []byte, k *foldKeys) uint32

// join256 continues the register of a CRC32C over seven lanes at p: the first four as fold256
// does, beside them the others by CRC32. Preconditions: lane is a multiple of 64 and more than
// that, by its joint's, and k Castagnoli's.
//
//go:noescape
func join256(reg uint32, p *byte, lane int, by uint64, k *foldKeys) uint32

//go:noescape
func fold128(reg uint32, p []byte, k *foldKeys) uint32

// beside128 continues the register of a CRC32C over p, by blocks of four lanes of 64 bytes: three go
// through the CRC32 instruction, beside them the fourth is folded. Preconditions: those of fold, and k
// Castagnoli's.
//
//go:noescape
func beside128(reg uint32, p []byte, m *moves, k *foldKeys) uint32

// step continues the register of a CRC over p with the processor's CRC32 instruction.
//
//go:noescape
func step(reg uint32, p []byte) uint32

// stepBy continues the register of a CRC over p, by carry-less multiplications alone.
// Preconditions: len(p) is a multiple of 4, and k has what reduces.
//
//go:noescape
func stepBy(reg uint32, p []byte, k *foldKeys) uint32

// atStart is what the processor has and GODEBUG leaves.
func atStart() (width, bool) {
	has, sse42 := detect()
	w, step := allowed(os.Getenv("GODEBUG"))
	return min(has, w), sse42 && step
}

// detect is what the processor has: the widest multiplication, and CRC32.
func detect() (width, bool) { return widest(), hasSSE42() }

// hasSSE42 reports whether the processor has CRC32.
func hasSSE42() bool {
	const sse42 = 1 << 20
	_, _, c, _ := cpuid(1, 0)
	return c&sse42 != 0
}

// widest is the widest multiplication that processor and system have.
//
// golang.org/x/sys/cpu knows VPCLMULQDQ with AVX-512 only.
func widest() width {
	const pclmul, sse42, osxsave = 1 << 1, 1 << 20, 1 << 27
	maxLeaf, _, _, _ := cpuid(0, 0)
	_, _, c1, _ := cpuid(1, 0)
	if c1&(pclmul|sse42) != pclmul|sse42 {
		return noFolding
	}
	if maxLeaf < 7 || c1&osxsave == 0 {
		return width128
	}
	const (
		avx2, f, dq, vl = 1 << 5, 1 << 16, 1 << 17, 1 << 31
		vpclmul         = 1 << 10
		ymm             = 1<<1 | 1<<2 // XMM, YMM
		zmm             = ymm | 7<<5  // and the three parts of AVX-512
	)
	_, b7, c7, _ := cpuid(7, 0)
	saved := xgetbv()
	switch {
	case c7&vpclmul == 0 || b7&avx2 == 0 || saved&ymm != ymm:
		return width128
	case b7&(f|dq|vl) != f|dq|vl || saved&zmm != zmm:
		return width256
	}
	return width512
}

func cpuid(leaf, sub uint32) (a, b, c, d uint32)

// xgetbv is the low half of XCR0: the register state that the system saves.
func xgetbv() uint32
