package bench

import "math/bits"

// rng is splitmix64: small, fast, and good enough for loads and payloads.
type rng uint64

func (r *rng) next() uint64 {
	*r += 0x9e3779b97f4a7c15
	return mix64(uint64(*r))
}

// below returns a number in [0, n); n > 0.
func (r *rng) below(n uint64) uint64 {
	hi, _ := bits.Mul64(r.next(), n)
	return hi
}

// unit returns a number in [0, 1).
func (r *rng) unit() float64 { return float64(r.next()>>11) / (1 << 53) }

// mix64 spreads every bit of x over the whole word (splitmix64's finisher).
func mix64(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// permutation visits 0 … n-1 in a seeded random order, each number once,
// without a map: four Feistel rounds over the next even power of two, and
// numbers that fall outside are walked on.
type permutation struct {
	n    uint64
	half uint // bits of one half
	seed uint64
}

func newPermutation(n, seed uint64) permutation {
	w := uint(max(bits.Len64(n-1), 2))
	return permutation{n: n, half: (w + 1) / 2, seed: mix64(seed)}
}

func (p *permutation) at(i uint64) uint64 {
	mask := uint64(1)<<p.half - 1
	for {
		l, r := i>>p.half, i&mask
		for k := range uint64(4) {
			l, r = r, l^mix64(r+p.seed+k<<56)&mask
		}
		if i = l<<p.half | r; i < p.n {
			return i
		}
	}
}
