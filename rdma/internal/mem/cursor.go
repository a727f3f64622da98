package mem

import (
	"runtime/debug"

	"softiser/internal/memfault"
)

// Cursor walks over pieces of memory.
type Cursor struct {
	segs [][]byte
	i    int // piece
	off  int // within it
}

// Set puts c before the first byte of segs.
func (c *Cursor) Set(segs [][]byte) { c.segs, c.i, c.off = segs, 0, 0 }

// Detach drops the pieces and keeps the place; Attach gives the same pieces back. In
// between nothing keeps the memory alive.
func (c *Cursor) Detach() { c.segs = nil }

// Attach is described at Detach.
func (c *Cursor) Attach(segs [][]byte) { c.segs = segs }

// Next returns up to n bytes that lie together and moves behind them. There must
// be bytes left.
func (c *Cursor) Next(n int) []byte {
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

// Skip moves n bytes on.
func (c *Cursor) Skip(n int) {
	for n > 0 {
		n -= len(c.Next(n))
	}
}

// Together reports whether the next n bytes lie together.
func (c *Cursor) Together(n int) bool { return n <= len(c.segs[c.i])-c.off }

// Fit is how many of n bytes lie in at most pieces pieces, and in how many.
func (c Cursor) Fit(n, pieces int) (got, used int) {
	for got < n && used < pieces {
		got += len(c.Next(n - got))
		used++
	}
	return got, used
}

// Drop empties a list of pieces and forgets them. Most have one, for which clear would call the
// collector's barrier twice.
func Drop(segs [][]byte) [][]byte {
	if len(segs) == 1 {
		segs[0] = nil
	} else {
		clear(segs)
	}
	return segs[:0]
}

// CopyFrom copies to p from where c stands. It returns false when that memory
// faults.
func CopyFrom(p []byte, c *Cursor) (ok bool) {
	defer memfault.Guard(debug.SetPanicOnFault(true), &ok)
	for len(p) > 0 {
		p = p[copy(p, c.Next(len(p))):]
	}
	return true
}

// CopyTo copies p to where c stands. It returns false when that memory faults.
func CopyTo(c *Cursor, p []byte) (ok bool) {
	defer memfault.Guard(debug.SetPanicOnFault(true), &ok)
	for len(p) > 0 {
		p = p[copy(c.Next(len(p)), p):]
	}
	return true
}
