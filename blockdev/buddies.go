package blockdev

import "math/bits"

const (
	unitShift = 12
	maxOrder  = 8

	none   = -1
	inUse  = 0x80
	inside = 0xff // not the first unit of a buffer
)

// buddies is a buddy allocator of units of 4 KiB: a buffer is a power of two of them, split from
// a larger one when needed and joined with its other half when both are free. A buffer is named
// by its first unit.
//
//	order  0     1     2    …    8
//	bytes  4 Ki  8 Ki  16 Ki …   1 Mi
type buddies struct {
	free  [maxOrder + 1]int32 // first free buffer of each order, none when empty
	next  []int32             // by free buffer
	prev  []int32             // likewise
	state []uint8             // by buffer: order, and inUse
}

// newBuddies has n units, a multiple of the largest buffer, all of them free.
func newBuddies(n int) buddies {
	b := buddies{next: make([]int32, n), prev: make([]int32, n), state: make([]uint8, n)}
	for o := range b.free {
		b.free[o] = none
	}
	for u := n - 1<<maxOrder; u >= 0; u -= 1 << maxOrder {
		for i := range 1 << maxOrder {
			b.state[u+i] = inside
		}
		b.link(int32(u), maxOrder)
	}
	return b
}

// orderOf is the order of the smallest buffer of n bytes, or of the largest one that there is.
func orderOf(n int) int {
	if n >= MaxBuffer {
		return maxOrder
	}
	return bits.Len(uint(n-1) >> unitShift)
}

// take takes a buffer of order o out, splitting a larger one if need be.
func (b *buddies) take(o int) (u int32, ok bool) {
	from := o
	for from <= maxOrder && b.free[from] == none {
		from++
	}
	if from > maxOrder {
		return 0, false
	}
	u = b.free[from]
	b.unlink(u, from)
	for ; from > o; from-- {
		b.link(u+1<<(from-1), from-1)
	}
	b.state[u] = uint8(o) | inUse
	return u, true
}

// put frees a buffer and joins it with its buddy as far as that goes; false: no buffer of
// order o that is in use begins at u.
func (b *buddies) put(u int32, o int) bool {
	if b.state[u] != uint8(o)|inUse {
		return false
	}
	for o < maxOrder {
		buddy := u ^ 1<<o
		if b.state[buddy] != uint8(o) {
			break
		}
		b.unlink(buddy, o)
		b.state[max(u, buddy)] = inside
		u = min(u, buddy)
		o++
	}
	b.link(u, o)
	return true
}

func (b *buddies) link(u int32, o int) {
	b.state[u] = uint8(o)
	head := b.free[o]
	b.next[u], b.prev[u] = head, none
	if head != none {
		b.prev[head] = u
	}
	b.free[o] = u
}

func (b *buddies) unlink(u int32, o int) {
	if b.prev[u] != none {
		b.next[b.prev[u]] = b.next[u]
	} else {
		b.free[o] = b.next[u]
	}
	if b.next[u] != none {
		b.prev[b.next[u]] = b.prev[u]
	}
}
