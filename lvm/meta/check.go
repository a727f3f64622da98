package meta

import "fmt"

// Check verifies that the group is consistent: sizes can be told in bytes, segments follow each other,
// stripes lie inside their PV or LV, no two of them share an extent, and every
// name that is referred to exists. Segments of unknown types are left alone.
func (vg *VG) Check() error {
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
				limit, pv := uint64(0), vg.PV(a.Name)
				if pv != nil {
					limit = pv.PECount
				} else if o := vg.LV(a.Name); o != nil {
					limit = o.Extents()
				} else {
					return fmt.Errorf("%w: logical volume %q lies on %q, which does not exist", ErrSyntax, lv.Name, a.Name)
				}
				n := s.AreaLen()
				if a.Off > limit || n > limit-a.Off {
					return fmt.Errorf("%w: logical volume %q: extents %d+%d are outside %q", ErrSyntax, lv.Name, a.Off, n, a.Name)
				}
				for _, u := range used[a.Name] {
					if a.Off < u.off+u.n && u.off < a.Off+n {
						return fmt.Errorf("%w: logical volumes %q and %q share extents of %q", ErrSyntax, u.lv, lv.Name, a.Name)
					}
				}
				used[a.Name] = append(used[a.Name], run{a.Off, n, lv.Name})
			}
			refs := []string{s.Origin, s.COW, s.Metadata, s.Pool, s.External}
			for _, name := range refs {
				if name != "" && vg.LV(name) == nil {
					return fmt.Errorf("%w: logical volume %q refers to %q, which does not exist", ErrSyntax, lv.Name, name)
				}
			}
		}
	}
	return vg.checkLoops()
}

type run struct {
	off, n uint64
	lv     string
}

// checkLoops makes sure that following the parts of an LV comes to an end.
// (The origin of a thin volume is history, not a part.)
func (vg *VG) checkLoops() error {
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
				parts = append(parts, a.Name)
			}
			for _, p := range parts {
				if o := vg.LV(p); o != nil {
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
