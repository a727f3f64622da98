package meta

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
)

// Check verifies that the group is consistent: sizes can be told in bytes, segments follow each other,
// stripes lie inside their PV or LV, no two of them share an extent, and every
// name that is referred to exists. Segments of unknown types are left alone.
func (vg *VG) Check() error {
	pvs, lvs := vg.byName()
	used := map[string][]run{}
	for _, pv := range vg.PVs {
		if pv.PEStart > maxSectors || pv.PECount > (maxSectors-pv.PEStart)/vg.ExtentSize {
			return fmt.Errorf("%w: physical volume %q: %d extents from sector %d on are more than any device has", ErrSyntax, pv.Name, pv.PECount, pv.PEStart)
		}
	}
	for _, lv := range vg.LVs {
		var next uint64
		for _, s := range lv.Segments {
			if s.Start != next || s.Count == 0 {
				return fmt.Errorf("%w: logical volume %q: segment at extent %d does not follow the one before", ErrSyntax, lv.Name, s.Start)
			}
			next += s.Count
			if next > min(maxExtents, maxSectors/vg.ExtentSize) {
				return fmt.Errorf("%w: logical volume %q has too many extents", ErrSyntax, lv.Name)
			}
			for _, a := range s.Stripes {
				var limit uint64
				if pv := pvs[a.Name]; pv != nil {
					limit = pv.PECount
				} else if o := lvs[a.Name]; o != nil {
					limit = o.Extents()
				} else {
					return fmt.Errorf("%w: logical volume %q lies on %q, which does not exist", ErrSyntax, lv.Name, a.Name)
				}
				n := s.AreaLen()
				if a.Off > limit || n > limit-a.Off {
					return fmt.Errorf("%w: logical volume %q: extents %d+%d are outside %q", ErrSyntax, lv.Name, a.Off, n, a.Name)
				}
				used[a.Name] = append(used[a.Name], run{a.Off, n, lv.Name})
			}
			refs := []string{s.Origin, s.COW, s.Metadata, s.Pool, s.External}
			for _, name := range refs {
				if name != "" && lvs[name] == nil {
					return fmt.Errorf("%w: logical volume %q refers to %q, which does not exist", ErrSyntax, lv.Name, name)
				}
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(used)) {
		if err := checkShared(name, used[name]); err != nil {
			return err
		}
	}
	return vg.checkLoops(pvs, lvs)
}

// byName finds what the names in a text stand for. Both kinds may have one: a stripe of that name
// lies on the PV, everything else is an LV.
func (vg *VG) byName() (pvs map[string]*PV, lvs map[string]*LV) {
	pvs, lvs = make(map[string]*PV, len(vg.PVs)), make(map[string]*LV, len(vg.LVs))
	for _, pv := range vg.PVs {
		pvs[pv.Name] = pv
	}
	for _, lv := range vg.LVs {
		lvs[lv.Name] = lv
	}
	return pvs, lvs
}

type run struct {
	off, n uint64
	lv     string
}

// checkShared refuses runs of one PV or LV that overlap.
func checkShared(name string, rs []run) error {
	slices.SortStableFunc(rs, func(a, b run) int { return cmp.Compare(a.off, b.off) })
	for i := 1; i < len(rs); i++ {
		if u, r := rs[i-1], rs[i]; r.off < u.off+u.n {
			return fmt.Errorf("%w: logical volumes %q and %q share extents of %q", ErrSyntax, u.lv, r.lv, name)
		}
	}
	return nil
}

// checkLoops makes sure that following the parts of an LV comes to an end.
// (The origin of a thin volume is history, not a part.)
func (vg *VG) checkLoops(pvs map[string]*PV, lvs map[string]*LV) error {
	state := map[string]int{} // 1 being visited, 2 done
	var visit func(lv *LV) error
	visit = func(lv *LV) error {
		switch state[lv.Name] {
		case 1:
			return fmt.Errorf("%w: logical volume %q is a part of itself", ErrSyntax, lv.Name)
		case 2:
			return nil
		}
		state[lv.Name] = 1
		for _, s := range lv.Segments {
			parts := []string{s.COW, s.Metadata, s.Pool, s.External}
			if s.Type == Snapshot {
				parts = append(parts, s.Origin)
			}
			for _, a := range s.Stripes {
				if pvs[a.Name] == nil {
					parts = append(parts, a.Name)
				}
			}
			for _, p := range parts {
				if o := lvs[p]; o != nil {
					if err := visit(o); err != nil {
						return err
					}
				}
			}
		}
		state[lv.Name] = 2
		return nil
	}
	for _, lv := range vg.LVs {
		if err := visit(lv); err != nil {
			return err
		}
	}
	return nil
}
