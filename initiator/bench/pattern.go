package bench

// extent is one operation on the volume, in bytes.
type extent struct {
	d   dir
	off int64
	n   int
}

// pattern produces the operations of one clone over the range [base,
// base+units×unit) of a volume of total bytes. It is not safe for concurrent use.
// The same job and seed always give the same sequence, unless turn is set.
type pattern struct {
	job   *Job
	base  int64
	unit  int64
	units uint64
	total int64
	rng   rng

	hot   [datas]*scatter // random and uneven, per direction: its blocks are counted in its own alignment
	cur   cursor
	perm  permutation
	draw  uint64   // random: position in perm
	used  []uint64 // random map in units, for sizes that vary; nil: perm alone is exact
	left  uint64   // random: units not yet used in this pass
	moved int64    // bytes given out in this pass: it ends when they are as many as the range has
	pass  uint64
	turn  func(dir) dir // which direction goes on where the mix has drawn one; nil: that one
}

// newPattern makes the sequence of a clone; size is a multiple of the unit.
func newPattern(j *Job, base, size, total int64) *pattern {
	p := &pattern{job: j, base: base, unit: int64(j.minBS()), total: total}
	p.units = uint64(size / p.unit)
	p.rng = rng(mix64(j.Seed + uint64(j.clone)<<32))
	span := size // of random offsets
	if j.Zones.strided {
		span = min(j.Zones.span, total-base)
	}
	if j.uneven() {
		for d, on := range j.Dirs {
			if block := j.align(dir(d)); on && span >= block {
				p.hot[d] = newScatter(j.Dist, uint64(span/block), j.Seed+uint64(j.clone)<<32)
			}
		}
	} else if j.Random && !j.noMap() {
		if j.maxBS() != j.minBS() {
			p.used = make([]uint64, (max(p.units, uint64(span/p.unit))+63)/64)
		}
	}
	p.cur.untilDraw = 1
	p.restart()
	return p
}

// restart begins a new pass over the range.
func (p *pattern) restart() {
	p.moved = 0
	p.cur.restart(p.base)
	p.shuffle(p.units)
}

// shuffle makes each of n blocks be drawn once more.
func (p *pattern) shuffle(n uint64) {
	p.draw, p.left = 0, n
	p.perm = newPermutation(n, uint64(p.rng)+p.pass)
	clear(p.used)
	p.pass++
}

// next returns the next operation, or ok=false at the end of the pass.
func (p *pattern) next() (e extent, ok bool) {
	if p.moved >= int64(p.units)*p.unit {
		return e, false
	}
	e.d = p.direction()
	size := p.size(e.d)
	p.enterZone()
	if p.cur.follows(p.job) {
		e.off, e.n, ok = p.follow(e.d, size)
		if !ok && p.job.Random && e.off >= p.total {
			e.off, e.n, ok = p.random(e.d, size) // fio draws a new place when a sequence has come to the volume's end
		}
	} else {
		e.off, e.n, ok = p.random(e.d, size)
	}
	if !ok {
		return e, false
	}
	p.moved += int64(e.n)
	p.cur.moved += int64(e.n)
	p.cur.last[e.d], p.cur.pos[e.d] = e.off, e.off+int64(e.n)
	return e, true
}

// random draws an offset.
func (p *pattern) random(d dir, size int) (off int64, n int, ok bool) {
	units := uint64(size / int(p.unit))
	var at uint64
	switch {
	case p.hot[d] != nil, p.job.noMap():
		return p.aligned(d, size)
	case p.used == nil:
		if p.draw >= p.perm.n {
			return 0, 0, false
		}
		at, units = p.perm.at(p.draw), 1
		p.draw++
	default:
		if at, units, ok = p.drawFree(units); !ok {
			return 0, 0, false
		}
	}
	return p.cur.from + int64(at)*p.unit, int(units) * int(p.unit), true
}

// aligned draws any offset at the direction's boundary from which its smallest
// block fits; a larger one is cut at the end of the range.
func (p *pattern) aligned(d dir, size int) (off int64, n int, ok bool) {
	span := p.span()
	align := p.job.align(d)
	blocks := uint64((span - max(int64(p.job.BS[d].Min)-align, 0)) / align)
	if blocks == 0 {
		return 0, 0, false
	}
	if p.hot[d] != nil {
		off = int64(min(p.hot[d].next(&p.rng), blocks-1)) * align
	} else {
		off = int64(p.rng.below(blocks)) * align
	}
	n = int(min(int64(size), span-off))
	return p.cur.from + off, n - n%int(p.unit), true
}

// drawFree takes the next unused unit of the permutation and as many free
// units behind it as want asks for.
func (p *pattern) drawFree(want uint64) (at, n uint64, ok bool) {
	for p.draw < p.perm.n && p.left > 0 {
		at = p.perm.at(p.draw)
		p.draw++
		for n < want && at+n < p.perm.n && p.used[(at+n)/64]&(1<<((at+n)%64)) == 0 {
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
		d := dirWrite
		if p.rng.below(100) < uint64(j.RWMixRead) {
			d = dirRead
		}
		if p.turn != nil {
			d = p.turn(d)
		}
		return d
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

// align is the boundary of random offsets in bytes.
func (j *Job) align(d dir) int64 {
	if j.Align[d] != 0 && j.Random {
		return j.Align[d]
	}
	return int64(j.BS[d].Min)
}

// enterZone moves on to the next zone when the present one has had its bytes, and
// begins it again when all of it has been visited before that.
func (p *pattern) enterZone() {
	z, c := &p.job.Zones, &p.cur
	if !z.strided {
		return
	}
	if c.moved >= z.size {
		moved := c.from + z.span + z.skip
		if moved >= p.total {
			moved = p.base
		}
		c.restart(moved)
	}
	for d := range c.pos {
		if c.pos[d] >= c.from+z.span {
			c.pos[d] = c.from
		}
	}
	if p.job.Random && c.moved%z.span == 0 {
		p.shuffle(uint64(p.span() / p.unit))
	}
}

// end is the first byte behind what the pattern can reach.
func (p *pattern) end() int64 {
	if p.job.Zones.strided {
		return p.total
	}
	return p.base + int64(p.units)*p.unit
}
