package iscsi

import (
	"softiser/internal/iscsi"
	"softiser/internal/segs"
)

// pieces are the bytes of one DataIn or DataOut on their way: all at once, or a piece at a
// time where the connection bounds a transfer.
type pieces struct {
	off  uint32   // of segs in the command's data
	segs [][]byte // nil between two
	len  int      // bytes of segs
	pos  int      // of these: given to the datamover, or come with the command
	cut  [][]byte // scratch: the segments of the piece under way
}

// next makes x what follows pos: all of it, or at most so many bytes; 0: no bound.
func (p *pieces) next(x *iscsi.Transfer, most int) {
	n := p.len - p.pos
	if most > 0 {
		n = min(n, most)
	}
	x.Segs = p.segs
	if n < p.len {
		p.cut = segs.Of(p.segs, p.pos, n).Append(p.cut[:0])
		x.Segs = p.cut
	}
	x.Offset, x.Len, x.Err = p.off+uint32(p.pos), uint32(n), nil
}
