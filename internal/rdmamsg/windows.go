package rdmamsg

import "softiser/rdma"

// Windows are the memory of a connection that its peer may reach. Closed windows are
// used again, under new keys: a command takes a table slot, no allocation.
type Windows struct {
	link   *Link
	all    []*rdma.Window
	closed []*rdma.Window // for the next command
	segs   [][]byte       // working space
}

// Open opens a window over segs, without the first from bytes of them.
func (t *Windows) Open(segs [][]byte, from uint32, a rdma.Access) (w *rdma.Window, stag uint32, base uint64, err error) {
	if n := len(t.closed); n > 0 {
		w, t.closed = t.closed[n-1], t.closed[:n-1]
	} else {
		if w, err = t.link.d.pd.AllocWindow(); err != nil {
			return nil, 0, 0, err
		}
		t.all = append(t.all, w)
	}
	if from > 0 {
		segs = t.behind(segs, from)
		defer clear(t.segs)
	}
	if stag, base, err = w.Bind(t.link.QP, segs, a); err != nil {
		t.closed = append(t.closed, w)
		return nil, 0, 0, err
	}
	return w, stag, base, nil
}

// behind is segs without the first from bytes; it is valid until the next call.
func (t *Windows) behind(segs [][]byte, from uint32) [][]byte {
	t.segs = t.segs[:0]
	for _, s := range segs {
		if from >= uint32(len(s)) {
			from -= uint32(len(s))
			continue
		}
		t.segs = append(t.segs, s[from:])
		from = 0
	}
	return t.segs
}

// Close ends the exposure: when it returns, the peer touches the memory no more. It
// reports whether all that the peer has sent has reached that memory.
func (t *Windows) Close(w *rdma.Window) (whole bool) {
	w.Invalidate()
	t.closed = append(t.closed, w)
	return w.Faults() == 0
}

// free closes every window for good, at the end of the connection.
func (t *Windows) free() {
	for _, w := range t.all {
		_ = w.Close()
	}
	t.all, t.closed = nil, nil
}
