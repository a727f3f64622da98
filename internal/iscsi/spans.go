package iscsi

import "slices"

// Spans are the ranges of a data sequence that have arrived, where its PDUs may come in
// any order (DataPDUInOrder=No, RFC 7143 §13.18): in ascending order, disjoint, not
// touching.
type Spans []span

type span struct{ off, end uint32 }

// maxSpans bounds the pieces between which there are gaps; an initiator that scatters
// its data more than that does it to make work.
const maxSpans = 256

// Add takes the range of n bytes at off in. It reports false, and changes nothing, if
// part of it has arrived before, or if there are too many gaps. off+n must not
// overflow.
func (s *Spans) Add(off, n uint32) bool {
	if n == 0 {
		return true
	}
	end := off + n
	i, _ := slices.BinarySearchFunc(*s, off, func(x span, off uint32) int {
		if x.end < off {
			return -1
		}
		return 1
	})
	// (*s)[i] is the first one that ends at off or behind it.
	touchesLeft := i < len(*s) && (*s)[i].end == off
	next := i
	if touchesLeft {
		next++
	}
	if next < len(*s) && (*s)[next].off < end {
		return false
	}
	touchesRight := next < len(*s) && (*s)[next].off == end
	switch {
	case touchesLeft && touchesRight:
		(*s)[i].end = (*s)[next].end
		*s = slices.Delete(*s, next, next+1)
	case touchesLeft:
		(*s)[i].end = end
	case touchesRight:
		(*s)[next].off = off
	case len(*s) == maxSpans:
		return false
	default:
		*s = slices.Insert(*s, i, span{off, end})
	}
	return true
}
