package vg

import (
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
