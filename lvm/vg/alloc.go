package vg

import (
	"fmt"
	"slices"
	"sort"

	"softiser/lvm/meta"
)

// Range restricts an allocation to extents of a PV.
type Range struct {
	PV       string // name in the text
	Off, Len uint64 // extents; Len 0: to the end
}

// Request asks for extents.
type Request struct {
	Extents    uint64          // how many
	Stripes    int             // 0 and 1: linear
	StripeSize uint64          // sectors, with Stripes > 1
	Policy     string          // contiguous, cling, normal, anywhere; "" and inherit: the group's
	From       []Range         // where they may lie; nil: anywhere
	After      *meta.LV        // the LV to extend; nil for a new one
	Avoid      map[string]bool // PVs not to use
}

// hole is a run of free extents of a PV.
type hole struct {
	pv       string
	off, len uint64
}

// Allocate finds extents, and returns the segments that hold them. It changes
// nothing.
//
//	contiguous  one run per stripe, right behind the LV's last segment if it has one
//	cling       on the PVs that the LV already uses
//	normal      anywhere, but the stripes of one segment on different PVs
//	anywhere    as normal, stripes may share a PV
func Allocate(vg *meta.VG, r Request) ([]*meta.Segment, error) {
	if r.Stripes < 1 {
		r.Stripes = 1
	}
	n := uint64(r.Stripes)
	if r.Extents == 0 || r.Extents%n != 0 {
		return nil, fmt.Errorf("%d extents cannot be spread over %d stripes", r.Extents, n)
	}
	policy := r.Policy
	if policy == "" || policy == "inherit" {
		policy = vg.Alloc
	}
	holes, total := holesOf(vg, r)
	if total < r.Extents {
		return nil, fmt.Errorf("volume group %q: %w: %d extents are needed, %d are available", vg.Name, ErrNoExtents, r.Extents, total)
	}
	a := &allocator{r: r, holes: holes, per: r.Extents / n}
	var err error
	switch policy {
	case "", "normal":
		err = a.normal()
	case "anywhere":
		a.sharePVs = true
		err = a.normal()
	case "contiguous":
		err = a.contiguous()
	case "cling":
		a.cling()
		err = a.normal()
	default:
		return nil, fmt.Errorf("allocation policy %q is none of contiguous, cling, normal, anywhere, inherit", policy)
	}
	if err != nil {
		return nil, fmt.Errorf("volume group %q, policy %s: %w", vg.Name, policy, err)
	}
	start := uint64(0)
	if r.After != nil {
		start = r.After.Extents()
	}
	for _, s := range a.out {
		s.Start = start
		start += s.Count
	}
	return a.out, nil
}

// holesOf lists the free runs that a request may use, and how many extents they have.
func holesOf(vg *meta.VG, r Request) (holes []hole, total uint64) {
	used := Used(vg)
	for _, pv := range vg.PVs {
		if !pv.Allocatable() || r.Avoid[pv.Name] {
			continue
		}
		var at uint64
		for _, u := range append(used[pv.Name], Use{Off: pv.PECount}) {
			if u.Off > at {
				holes = append(holes, clip(hole{pv.Name, at, u.Off - at}, r.From)...)
			}
			at = u.Off + u.Len
		}
	}
	for _, h := range holes {
		total += h.len
	}
	return holes, total
}

// clip is the parts of a hole that lie in one of the ranges; nil ranges are no restriction.
func clip(h hole, from []Range) []hole {
	if len(from) == 0 {
		return []hole{h}
	}
	var out []hole
	for _, f := range from {
		if f.PV != h.pv {
			continue
		}
		lo, hi := max(h.off, f.Off), h.off+h.len
		if f.Len != 0 {
			hi = min(hi, f.Off+f.Len)
		}
		if lo < hi {
			out = append(out, hole{h.pv, lo, hi - lo})
		}
	}
	return out
}

// allocator is one allocation under way.
type allocator struct {
	r        Request
	holes    []hole // runs that are still free, by PV
	per      uint64 // extents still to find for each stripe
	sharePVs bool   // the stripes of a segment may lie on one PV
	out      []*meta.Segment
}

// take cuts n extents off the front of each chosen hole and emits a segment.
func (a *allocator) take(idx []int, n uint64) {
	s := &meta.Segment{Type: meta.Striped, Count: n * uint64(len(idx))}
	if len(idx) > 1 {
		s.StripeSize = a.r.StripeSize
	}
	for _, i := range idx {
		h := &a.holes[i]
		s.Stripes = append(s.Stripes, meta.Area{Name: h.pv, Off: h.off})
		h.off += n
		h.len -= n
	}
	a.out = append(a.out, s)
	a.per -= n
}

// last is the segment that the new extents would follow.
func (a *allocator) last() *meta.Segment {
	if a.r.After == nil || len(a.r.After.Segments) == 0 {
		return nil
	}
	s := a.r.After.Segments[len(a.r.After.Segments)-1]
	if s.Type != meta.Striped || len(s.Stripes) != a.r.Stripes {
		return nil
	}
	return s
}

// behind finds for each stripe of s the hole that begins right behind it, and how many extents
// all of these have; 0: one stripe has none.
func (a *allocator) behind(s *meta.Segment) ([]int, uint64) {
	var idx []int
	n := a.per
	for _, st := range s.Stripes {
		found := -1
		for i, h := range a.holes {
			if h.pv == st.Name && h.off == st.Off+s.AreaLen() && h.len > 0 {
				found = i
			}
		}
		if found < 0 {
			return nil, 0
		}
		idx, n = append(idx, found), min(n, a.holes[found].len)
	}
	return idx, n
}

// contiguous takes one run for each stripe: right behind the last segment, if there is one.
func (a *allocator) contiguous() error {
	if s := a.last(); s != nil {
		if idx, n := a.behind(s); n == a.per {
			a.take(idx, n)
			return nil
		}
		return fmt.Errorf("%w right behind the logical volume", ErrNoExtents)
	}
	idx := a.pick(a.per)
	if idx == nil {
		return fmt.Errorf("%w in one run", ErrNoExtents)
	}
	a.take(idx, a.per)
	return nil
}

// cling keeps only the holes on PVs that the LV already uses.
func (a *allocator) cling() {
	if a.r.After == nil || len(a.r.After.Segments) == 0 {
		return
	}
	a.holes = slices.DeleteFunc(a.holes, func(h hole) bool { return !a.uses(h.pv) })
}

// pick chooses a hole of at least n extents for each stripe, each on another
// PV: in the order of the PVs, and of each the longest, as lvm2 does.
func (a *allocator) pick(n uint64) []int {
	var idx []int
	for i := 0; i < len(a.holes) && len(idx) < a.r.Stripes; {
		best := i
		for pv := a.holes[i].pv; i < len(a.holes) && a.holes[i].pv == pv; i++ {
			if a.holes[i].len > a.holes[best].len {
				best = i
			}
		}
		if a.holes[best].len >= n {
			idx = append(idx, best)
		}
	}
	if len(idx) < a.r.Stripes {
		return nil
	}
	return idx
}

// clings reports whether what is left fits on the PVs that a linear LV uses.
func (a *allocator) clings() bool {
	if a.r.Stripes > 1 || a.last() == nil {
		return false
	}
	var n uint64
	for _, h := range a.holes {
		if a.uses(h.pv) {
			n += h.len
		}
	}
	return n >= a.per
}

func (a *allocator) uses(pv string) bool {
	for _, s := range a.r.After.Segments {
		for _, st := range s.Stripes {
			if st.Name == pv {
				return true
			}
		}
	}
	return false
}

// normal is lvm2's policy of that name: behind the last segment, on the PVs that the volume
// uses already, then one run that is long enough, and the longest ones where none is.
func (a *allocator) normal() error {
	if s := a.last(); s != nil {
		if idx, n := a.behind(s); n > 0 {
			a.take(idx, n)
		}
	}
	if a.per > 0 && a.clings() {
		a.cling()
	}
	if a.per > 0 {
		if idx := a.pick(a.per); idx != nil {
			a.take(idx, a.per)
		}
	}
	return a.scatter()
}

// scatter takes what is still to find from many runs, the longest first.
func (a *allocator) scatter() error {
	for a.per > 0 {
		sort.SliceStable(a.holes, func(i, j int) bool { return a.holes[i].len > a.holes[j].len })
		var idx []int
		on := map[string]bool{}
		n := a.per
		for i, h := range a.holes {
			if len(idx) < a.r.Stripes && h.len > 0 && (a.sharePVs || !on[h.pv]) {
				idx, on[h.pv], n = append(idx, i), true, min(n, h.len)
			}
		}
		if len(idx) < a.r.Stripes {
			return fmt.Errorf("%w for %d stripes: %d more are needed on each", ErrNoExtents, a.r.Stripes, a.per)
		}
		a.take(idx, n)
	}
	return nil
}
