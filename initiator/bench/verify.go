package bench

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
)

// Every verified block begins with fio's header (little-endian, here with the
// crc32c value that fio appends for verify=crc32c), so fio can check our blocks
// and we can check fio's:
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-------------------------------+-------------------------------+
//	|         magic 0xacca          |        verify type 5          |
//	+-------------------------------+-------------------------------+
//	|                     length of the block                       |
//	+---------------------------------------------------------------+
//	|                                                               |
//	+     seed of this block: mix(job seed, offset, generation)     +
//	|                                                               |
//	+---------------------------------------------------------------+
//	|                                                               |
//	+                    offset on the volume                       +
//	|                                                               |
//	+---------------------------------------------------------------+
//	|                  seconds (ours: job seed)                     |
//	+---------------------------------------------------------------+
//	|                nanoseconds (ours: generation)                 |
//	+-------------------------------+-------------------------------+
//	|            thread             |   number of the write (low)   |
//	+-------------------------------+-------------------------------+
//	|               CRC32C of the 36 bytes above                    |
//	+---------------------------------------------------------------+
//	|                 CRC32C of the bytes below                     |
//	+---------------------------------------------------------------+
//
// Both CRCs are stored without the final inversion.
const (
	hdrMagic  = 0xacca
	hdrCRC32C = 5
	hdrSize   = 44
	hdrSummed = 36
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// blockSeed identifies one generation of one block.
func blockSeed(seed uint64, off int64, gen uint32) uint64 {
	return mix64(mix64(seed^uint64(off)*0x9e3779b97f4a7c15) + uint64(gen))
}

// fillBlock makes p the content of generation gen of the block at off; of the
// payload's wishes it heeds how compressible its end is to be, as fio does.
func fillBlock(p []byte, seed uint64, off int64, gen uint32, thread int, pay *Payload) {
	bs := blockSeed(seed, off, gen)
	front := hdrSize + (len(p)-hdrSize)*(100-pay.compress)/100
	fillRandom(p[hdrSize:front], bs)
	repeat(p[front:], pay.pattern)
	le := binary.LittleEndian
	le.PutUint16(p[0:], hdrMagic)
	le.PutUint16(p[2:], hdrCRC32C)
	le.PutUint32(p[4:], uint32(len(p)))
	le.PutUint64(p[8:], bs)
	le.PutUint64(p[16:], uint64(off))
	le.PutUint32(p[24:], uint32(seed))
	le.PutUint32(p[28:], gen)
	le.PutUint16(p[32:], uint16(thread))
	le.PutUint16(p[34:], uint16(gen))
	le.PutUint32(p[36:], ^crc32.Checksum(p[:hdrSummed], castagnoli))
	le.PutUint32(p[40:], ^crc32.Checksum(p[hdrSize:], castagnoli))
}

// Mismatch says what is wrong with a block.
type Mismatch struct {
	Off      int64 // bytes, on the volume
	Len      int
	Kind     string // "corrupt header", "corrupt data", "misplaced", "stale", …
	Expected string
	Got      string

	torn bool // explained by a write that was cut short
}

func (m *Mismatch) Error() string {
	return fmt.Sprintf("verify: %s block at offset %d, length %d: expected %s, got %s", m.Kind, m.Off, m.Len, m.Expected, m.Got)
}

// window is the generations that a block may hold.
type window struct {
	lo, hi  uint32 // inclusive
	torn    bool   // a write was under way: the block may hold parts of two
	unknown bool   // whatever generation or seed (a volume written by another run or by fio)
}

// checkBlock reports what is wrong with p as the block at off; nil if nothing
// is. Where a write had not been acknowledged, a block torn between two writes
// is legal (a disk promises no more), a whole block of a wrong place or
// generation is not.
func checkBlock(p []byte, seed uint64, off int64, w window) *Mismatch {
	m := compareBlock(p, seed, off, w)
	if m != nil && m.torn && w.torn {
		return nil
	}
	return m
}

// compareBlock checks one block at off against the header that was written into it and
// the generations that w allows. nil: it is right.
func compareBlock(p []byte, seed uint64, off int64, w window) *Mismatch {
	bad := func(kind, expected, got string, args ...any) *Mismatch {
		return &Mismatch{Off: off, Len: len(p), Kind: kind, Expected: expected, Got: fmt.Sprintf(got, args...)}
	}
	le := binary.LittleEndian
	if m := le.Uint16(p); m != hdrMagic {
		return bad("unwritten or corrupt", w.String()+" with magic 0xacca", "magic %#04x, first bytes % x", m, p[:16])
	}
	if want, got := ^crc32.Checksum(p[:hdrSummed], castagnoli), le.Uint32(p[36:]); want != got {
		m := bad("corrupt header:", fmt.Sprintf("header crc32c %08x", want), "%08x", got)
		m.torn = true
		return m
	}
	if t := le.Uint16(p[2:]); t != hdrCRC32C {
		return bad("foreign", "verify type 5 (crc32c)", "type %d", t)
	}
	if got := int64(le.Uint64(p[16:])); got != off {
		return bad("misplaced", fmt.Sprintf("the block of offset %d", off), "the block of offset %d", got)
	}
	if n := le.Uint32(p[4:]); int(n) != len(p) {
		return bad("wrong-sized", fmt.Sprintf("a block of %d bytes", len(p)), "a block of %d bytes", n)
	}
	if !w.unknown {
		gen := le.Uint32(p[28:])
		if le.Uint64(p[8:]) != blockSeed(seed, off, gen) {
			return bad("foreign", fmt.Sprintf("seed %#x", seed), "a block of another run (seed %#x)", le.Uint32(p[24:]))
		}
		if gen < w.lo {
			return bad("stale", w.String(), "generation %d", gen)
		}
		if gen > w.hi {
			return bad("unexpected", w.String(), "generation %d", gen)
		}
	}
	if want, got := ^crc32.Checksum(p[hdrSize:], castagnoli), le.Uint32(p[40:]); want != got {
		m := bad("corrupt data:", fmt.Sprintf("crc32c %08x", got), "%08x", want)
		m.torn = true
		return m
	}
	return nil
}

func (w window) String() string {
	switch {
	case w.unknown:
		return "a block"
	case w.lo == w.hi:
		return fmt.Sprintf("generation %d", w.lo)
	}
	return fmt.Sprintf("generation %d to %d", w.lo, w.hi)
}
