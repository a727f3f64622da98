package iscsitcp

// view is a range of a scattered buffer, found once and then walked. The segment
// list itself is borrowed and not changed.
type view struct {
	segs [][]byte
	off  int // into segs[0]
	n    int // bytes
}

// viewOf returns the view of [off, off+n) of segs, which must contain it.
func viewOf(segs [][]byte, off, n int) view {
	for len(segs) > 0 && off >= len(segs[0]) {
		off -= len(segs[0])
		segs = segs[1:]
	}
	return view{segs: segs, off: off, n: n}
}

// skip drops the first k ≤ n bytes.
func (v *view) skip(k int) {
	v.n -= k
	v.off += k
	for len(v.segs) > 0 && v.off >= len(v.segs[0]) {
		v.off -= len(v.segs[0])
		v.segs = v.segs[1:]
	}
}

// next returns the first piece that is contiguous; empty at the end.
func (v *view) next() []byte {
	if v.n == 0 {
		return nil
	}
	s := v.segs[0][v.off:]
	return s[:min(len(s), v.n)]
}

// appendTo appends the pieces of v to dst.
func (v view) appendTo(dst [][]byte) [][]byte {
	for v.n > 0 {
		s := v.next()
		dst = append(dst, s)
		v.skip(len(s))
	}
	return dst
}

func total(segs [][]byte) int {
	n := 0
	for _, s := range segs {
		n += len(s)
	}
	return n
}
