package vg

import (
	"fmt"
	"slices"
	"sort"

	"softiser/lvm/meta"
)

// Use is a run of extents of a PV that an LV occupies.
type Use struct {
	Off, Len uint64 // extents
	LV       string // name
}

// Used lists the occupied runs of each PV, in order. Segment types that this
// package does not know lie on hidden LVs, whose own segments are listed.
func Used(vg *meta.VG) map[string][]Use {
	m := map[string][]Use{}
	for _, lv := range vg.LVs {
		for _, s := range lv.Segments {
			for _, a := range s.Stripes {
				if vg.PV(a.Name) != nil {
					m[a.Name] = append(m[a.Name], Use{a.Off, s.AreaLen(), lv.Name})
				}
			}
		}
	}
	for _, u := range m {
		sort.Slice(u, func(i, j int) bool { return u[i].Off < u[j].Off })
	}
	return m
}

// Free counts the free extents of a PV.
func Free(vg *meta.VG, pv *meta.PV) uint64 {
	n := pv.PECount
	for _, u := range Used(vg)[pv.Name] {
		n -= u.Len
	}
	return n
}

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

// hole is a free run.
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
		err = a.normal(false)
	case "anywhere":
		err = a.normal(true)
	case "contiguous":
		err = a.contiguous()
	case "cling":
		a.cling()
		err = a.normal(false)
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

type allocator struct {
	r     Request
	holes []hole
	per   uint64 // extents still to find for each stripe
	out   []*meta.Segment
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

// behind finds for each stripe the hole that begins right behind it.
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
		if n > 0 && a.holes[best].len >= n {
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

// normal is lvm2's policy of that name: behind the last segment, beside what the volume
// has already, then one run that is long enough, and the longest ones where none is.
// shared lets stripes lie on one disk.
func (a *allocator) normal(shared bool) error {
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
	// No run is long enough: the longest first.
	for a.per > 0 {
		sort.SliceStable(a.holes, func(i, j int) bool { return a.holes[i].len > a.holes[j].len })
		var idx []int
		on := map[string]bool{}
		n := a.per
		for i, h := range a.holes {
			if len(idx) < a.r.Stripes && h.len > 0 && (shared || !on[h.pv]) {
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

// Append adds segments to an LV; runs that continue the last segment's become
// part of it.
func Append(lv *meta.LV, segs []*meta.Segment) {
	for _, s := range segs {
		if n := len(lv.Segments); n > 0 && continues(lv.Segments[n-1], s) {
			lv.Segments[n-1].Count += s.Count
			continue
		}
		s.Start = lv.Extents()
		lv.Segments = append(lv.Segments, s)
	}
}

func continues(a, b *meta.Segment) bool {
	if a.Type != meta.Striped || b.Type != meta.Striped || len(a.Stripes) != len(b.Stripes) || a.StripeSize != b.StripeSize || len(a.Tags) != 0 {
		return false
	}
	for i := range a.Stripes {
		if a.Stripes[i].Name != b.Stripes[i].Name || a.Stripes[i].Off+a.AreaLen() != b.Stripes[i].Off {
			return false
		}
	}
	return true
}

// Truncate cuts an LV down to n extents. With stripes, n is rounded up to
// whole stripes.
func Truncate(lv *meta.LV, n uint64) {
	for i, s := range lv.Segments {
		if s.Start+s.Count <= n {
			continue
		}
		if s.Start >= n {
			lv.Segments = lv.Segments[:i]
			return
		}
		k := uint64(max(len(s.Stripes), 1))
		s.Count = (n - s.Start + k - 1) / k * k
		lv.Segments = lv.Segments[:i+1]
		return
	}
}
