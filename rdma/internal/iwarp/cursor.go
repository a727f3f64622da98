package iwarp

// cursor walks over pieces of memory.
type cursor struct {
	segs [][]byte
	i    int // piece
	off  int // within it
}

func (c *cursor) set(segs [][]byte) { *c = cursor{segs: segs} }

// next returns up to n bytes that lie together and moves behind them. There must
// be bytes left.
func (c *cursor) next(n int) []byte {
	for c.off == len(c.segs[c.i]) {
		c.i++
		c.off = 0
	}
	p := c.segs[c.i][c.off:]
	if len(p) > n {
		p = p[:n]
	}
	c.off += len(p)
	return p
}

// skip moves n bytes on.
func (c *cursor) skip(n int) {
	for n > 0 {
		n -= len(c.next(n))
	}
}

// fit is how many of n bytes lie in at most pieces pieces, and in how many.
func (c cursor) fit(n, pieces int) (got, used int) {
	for got < n && used < pieces {
		got += len(c.next(n - got))
		used++
	}
	return got, used
}
