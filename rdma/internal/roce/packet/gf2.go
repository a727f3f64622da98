package packet

import "hash/crc32"

// Arithmetic of CRC-32's registers: polynomials over GF(2) modulo the generator, bit
// 31 being x^0 (the CRC is reflected). A byte of zeros multiplies a register by x^8.

const one = 1 << 31

// multiply is a times b.
func multiply(a, b uint32) (p uint32) {
	for ; a != 0; a <<= 1 {
		// Without branches, which could not be predicted: the bits of a are as good as random.
		p ^= b & -(a >> 31)
		b = b>>1 ^ crc32.IEEE&-(b&1)
	}
	return p
}

// inverses[k] is x^-8 to the power of 2^k.
var inverses = func() (t [16]uint32) {
	v := uint32(one)
	for range 8 { // divide by x
		v = (v^crc32.IEEE&-(v>>31))<<1 | v>>31
	}
	for k := range t {
		t[k], v = v, multiply(v, v)
	}
	return t
}()

// unshift is x^(-8n): it takes the effect of n bytes of zeros back. n is below 65536.
func unshift(n int) uint32 {
	v := uint32(one)
	for k := 0; n != 0; k, n = k+1, n>>1 {
		if n&1 != 0 {
			v = multiply(v, inverses[k])
		}
	}
	return v
}
