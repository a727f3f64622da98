package thin

import "fmt"

// counts are the reference counts of a device's blocks: what a space map says,
// in memory. Blocks that a transaction has freed are not given out again before
// it is stored, because the state on disk still uses them.
type counts struct {
	n     uint64
	small []uint8           // 255: see large
	large map[uint64]uint32 // counts of 255 and more
	used  uint64            // blocks with a count
	many  uint64            // blocks with a count of 3 and more
	hint  uint64            // where the search for a free block goes on
	freed map[uint64]bool   // since the last cut
	limbo map[uint64]bool   // freed before, but still on disk or lent to somebody

	dirty    map[uint64]bool // bitmaps that changed since the last cut
	overflow map[uint64]bool // blocks whose count is or was 3 or more, and changed
}

// perBitmap is the number of two-bit counts in a bitmap block.
const perBitmap = (blockSize - blockHeader) * 4

func newCounts(n uint64) *counts {
	return &counts{n: n, small: make([]uint8, n), large: map[uint64]uint32{}, freed: map[uint64]bool{}, limbo: map[uint64]bool{},
		dirty: map[uint64]bool{}, overflow: map[uint64]bool{}}
}

// grow adds blocks at the end.
func (c *counts) grow(n uint64) {
	for i := c.n / perBitmap; i < (n+perBitmap-1)/perBitmap; i++ {
		c.dirty[i] = true
	}
	c.small = append(c.small, make([]uint8, n-c.n)...)
	c.n = n
}

func (c *counts) get(b uint64) uint32 {
	if b >= c.n {
		return 0
	}
	if v := c.small[b]; v < 255 {
		return uint32(v)
	}
	return c.large[b]
}

// set changes a count without marking anything.
func (c *counts) set(b uint64, v uint32) {
	old := c.get(b)
	switch {
	case old == 0 && v != 0:
		c.used++
	case old != 0 && v == 0:
		c.used--
	}
	switch {
	case old < 3 && v >= 3:
		c.many++
	case old >= 3 && v < 3:
		c.many--
	}
	if v < 255 {
		c.small[b] = uint8(v)
		delete(c.large, b)
		return
	}
	c.small[b] = 255
	c.large[b] = v
}

func (c *counts) change(b uint64, v uint32) {
	old := c.get(b)
	if old >= 3 || v >= 3 {
		c.overflow[b] = true
	}
	c.set(b, v)
	c.dirty[b/perBitmap] = true
}

func (c *counts) inc(b uint64) error {
	if b >= c.n {
		return fmt.Errorf("%w: block %d is beyond the end of its device", ErrCorrupt, b)
	}
	v := c.get(b)
	if v == 1<<32-1 {
		return fmt.Errorf("block %d has too many references", b)
	}
	c.change(b, v+1)
	return nil
}

func (c *counts) dec(b uint64) error {
	v := c.get(b)
	if v == 0 {
		return fmt.Errorf("%w: block %d loses a reference that it does not have", ErrCorrupt, b)
	}
	c.change(b, v-1)
	if v == 1 {
		c.freed[b] = true
	}
	return nil
}

// alloc takes a free block.
func (c *counts) alloc() (uint64, bool) {
	if c.available() == 0 {
		return 0, false
	}
	for i := uint64(0); i < c.n; i++ {
		b := c.hint + i
		if b >= c.n {
			b -= c.n
		}
		if c.small[b] == 0 && !c.freed[b] && !c.limbo[b] {
			c.hint = b + 1
			c.change(b, 1)
			return b, true
		}
	}
	return 0, false
}

// available is the number of blocks that alloc can give out now.
func (c *counts) available() uint64 {
	return c.n - c.used - uint64(len(c.freed)) - uint64(len(c.limbo))
}

// giveBack undoes an alloc of this transaction.
func (c *counts) giveBack(b uint64) { c.change(b, 0) }

// cut forgets what changed, which the transaction has taken down, and returns
// the blocks that it freed: limbo has them until they may be given out.
func (c *counts) cut() []uint64 {
	freed := make([]uint64, 0, len(c.freed))
	for b := range c.freed {
		freed = append(freed, b)
		c.limbo[b] = true
	}
	clear(c.freed)
	clear(c.dirty)
	clear(c.overflow)
	return freed
}

// back takes a block out of limbo: it may be given out again.
func (c *counts) back(b uint64) {
	delete(c.limbo, b)
	c.hint = min(c.hint, b)
}

// bitmap fills in a bitmap block's counts and says how many are free, and the
// first of them.
func (c *counts) bitmap(i uint64, data []byte) (free, first uint32) {
	first = perBitmap
	base := i * perBitmap
	n := min(perBitmap, c.n-base)
	bits := data[blockHeader:]
	clear(bits)
	for k := uint64(0); k < n; k++ {
		v := min(c.get(base+k), 3)
		// The high bit comes first.
		bits[k/4] |= byte(v>>1|v&1<<1) << (k % 4 * 2)
		if v == 0 {
			free++
			first = min(first, uint32(k))
		}
	}
	return free, first
}

// loadBitmap is the inverse of bitmap.
func (c *counts) loadBitmap(i uint64, data []byte) {
	base := i * perBitmap
	bits := data[blockHeader:]
	for k := uint64(0); k < perBitmap && base+k < c.n; k++ {
		v := bits[k/4] >> (k % 4 * 2) & 3
		if v != 0 {
			c.set(base+k, uint32(v>>1|v&1<<1))
		}
	}
}
