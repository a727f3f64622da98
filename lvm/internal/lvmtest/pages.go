package lvmtest

const pageSize = 64 << 10

// pages are what a disk holds, by number of page; one that is not there is zeroes. Copies
// share what neither has written since: tests of crashes make thousands of them.
type pages map[int64]*page

type page struct {
	data   [pageSize]byte
	shared bool // in several pages, and therefore not written any more
}

// clone copies p.
func (p pages) clone() pages {
	c := make(pages, len(p))
	for k, v := range p {
		if !v.shared { // who else has it may be reading this
			v.shared = true
		}
		c[k] = v
	}
	return c
}

// own returns a page that may be written; keep says that what it holds is needed.
func (p pages) own(k int64, keep bool) *page {
	v := p[k]
	if v != nil && !v.shared {
		return v
	}
	if v != nil && keep {
		v = &page{data: v.data}
	} else {
		v = new(page)
	}
	p[k] = v
	return v
}

// put does a write.
func (p pages) put(w write) {
	for done := int64(0); done < w.n; {
		at := w.off + done
		k, o := at/pageSize, at%pageSize
		n := min(pageSize-o, w.n-done)
		whole := n == pageSize
		switch {
		case w.data != nil:
			copy(p.own(k, !whole).data[o:o+n], w.data[done:done+n])
		case whole:
			delete(p, k)
		case p[k] != nil:
			clear(p.own(k, true).data[o : o+n])
		}
		done += n
	}
}
