package vg

import "softiser/lvm/meta"

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
