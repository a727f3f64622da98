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

// extent is one operation on the volume, in bytes.
type extent struct {
	d   dir
	off int64
	n   int
}

// pattern produces the operations of one clone over the range [base,
// base+units×unit). It is not safe for concurrent use. The same job and seed
// always give the same sequence.
type pattern struct {
	job   *Job
	base  int64
	unit  int64
	units uint64
	rng   rng

	hot  [datas]*scatter // random and uneven, per direction: its blocks are counted in its own size
	pos  [datas]uint64   // sequential: next unit, per direction as in fio
	perm permutation
	draw uint64   // random: position in perm
	used []uint64 // random map in units, for sizes that vary; nil: perm alone is exact
	left uint64   // random: units not yet used in this pass
	// moved counts the units given out in this pass: a pass ends when it has
	// moved as much as the range holds.
	moved uint64
	pass  uint64
}

// newPattern makes the sequence of a clone; size is a multiple of the unit.
func newPattern(j *Job, base, size int64) *pattern {
	p := &pattern{job: j, base: base, unit: int64(j.minBS())}
	p.units = uint64(size / p.unit)
	p.rng = rng(mix64(j.Seed + uint64(j.clone)<<32))
	if j.uneven() {
		for d, on := range j.Dirs {
			if block := int64(j.BS[d].Min); on && size >= block {
				p.hot[d] = newScatter(j.Dist, uint64(size/block), j.Seed+uint64(j.clone)<<32)
			}
		}
	} else if j.Random && !j.NoRandomMap {
		if j.maxBS() != j.minBS() {
			p.used = make([]uint64, (p.units+63)/64)
		}
	}
	p.restart()
	return p
}

// restart begins a new pass over the range.
func (p *pattern) restart() {
	p.pos = [datas]uint64{}
	p.draw, p.left, p.moved = 0, p.units, 0
	p.perm = newPermutation(p.units, uint64(p.rng)+p.pass)
	clear(p.used)
	p.pass++
}

// next returns the next operation, or ok=false at the end of the pass.
func (p *pattern) next() (e extent, ok bool) {
	if p.moved >= p.units {
		return e, false
	}
	e.d = p.direction()
	size := p.size(e.d)
	var at, n uint64
	switch {
	case !p.job.Random:
		at = p.pos[e.d]
		if at >= p.units {
			return e, false
		}
		n = min(uint64(size/int(p.unit)), p.units-at)
		p.pos[e.d] = at + n
	case p.hot[e.d] != nil:
		own := uint64(p.job.BS[e.d].Min) / uint64(p.unit)
		at = p.hot[e.d].next(&p.rng) * own
		n = min(uint64(size/int(p.unit)), p.units-at)
	case p.job.NoRandomMap || p.job.uneven():
		// As fio: any block-aligned start from which a whole block fits.
		n = min(uint64(size/int(p.unit)), p.units)
		at = p.rng.below(p.units/n) * n
	case p.used == nil:
		if p.draw >= p.units {
			return e, false
		}
		at, n = p.perm.at(p.draw), 1
		p.draw++
	default:
		if at, n, ok = p.drawFree(uint64(size / int(p.unit))); !ok {
			return e, false
		}
	}
	p.moved += n
	e.off, e.n = p.base+int64(at)*p.unit, int(n)*int(p.unit)
	return e, true
}

// drawFree takes the next unused unit of the permutation and as many free
// units behind it as want asks for.
func (p *pattern) drawFree(want uint64) (at, n uint64, ok bool) {
	for p.draw < p.units && p.left > 0 {
		at = p.perm.at(p.draw)
		p.draw++
		for n < want && at+n < p.units && p.used[(at+n)/64]&(1<<((at+n)%64)) == 0 {
			p.used[(at+n)/64] |= 1 << ((at + n) % 64)
			n++
		}
		if n > 0 {
			p.left -= n
			return at, n, true
		}
	}
	return 0, 0, false
}

func (p *pattern) direction() dir {
	j := p.job
	switch {
	case j.mixed():
		if p.rng.below(100) < uint64(j.RWMixRead) {
			return dirRead
		}
		return dirWrite
	case j.Dirs[dirWrite]:
		return dirWrite
	case j.Dirs[dirTrim]:
		return dirTrim
	}
	return dirRead
}

// size draws a block size: a multiple of the smallest size, as fio does
// without bs_unaligned.
func (p *pattern) size(d dir) int {
	bs := p.job.BS[d]
	if bs.Min == bs.Max {
		return bs.Min
	}
	if split := p.job.Split[d]; split != nil {
		return pick(split, int(p.rng.below(100)))
	}
	steps := uint64((bs.Max-bs.Min)/int(p.unit)) + 1
	return bs.Min + int(p.rng.below(steps))*int(p.unit)
}
