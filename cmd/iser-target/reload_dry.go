package main

import (
	"os"
	"slices"

	"softiser/config"
)

// foresee says of the steps of a dry run which of them could not be done, as far as
// that shows without doing them.
func (a *app) foresee(steps []step) {
	a.changing.Lock() // what is looked at may be with storage for a while
	defer a.changing.Unlock()
	var freed []mapping
	absent := map[string]bool{} // targets that cannot be added
	for _, s := range steps {
		if s.Error == "" {
			freed = append(freed, s.frees...)
		} else if s.serves == nil && s.iqn != "" {
			absent[s.iqn] = true
		}
	}
	closes := func(o *openVolume) bool {
		return !slices.ContainsFunc(o.luns, func(m mapping) bool { return !slices.Contains(freed, m) })
	}
	for i := range steps {
		s := &steps[i]
		if s.Error != "" || s.serves == nil {
			continue
		}
		if absent[s.iqn] {
			s.Error = "its target cannot be added"
			continue
		}
		s.Error = a.obstacle(*s.serves, closes)
	}
}

// obstacle says why a volume could not become a LUN when those that closes names have
// been closed, "" if nothing shows. The caller holds a.changing, and is a reload.
func (a *app) obstacle(v config.Volume, closes func(*openVolume) bool) string {
	o := a.volumes[v.Name]
	fixed := []string(nil)
	if o != nil {
		fixed = withoutTunables(differing(o.cfg, v))
	}
	switch {
	case o != nil && len(fixed) == 0:
		return "" // it is open, and stays so
	case o != nil && !closes(o):
		return errOpen(v, fixed).Error()
	}
	_, err := probe(v, func(v config.Volume) bool {
		if v.Type == config.VolumeLVM && a.lvs.Group(v.VG) != nil {
			return true // one group, many volumes
		}
		for _, o := range a.volumes {
			if closes(o) && shareStore(o.cfg, v) {
				return true
			}
		}
		return false
	})
	if err != nil {
		return err.Error()
	}
	return ""
}

// shareStore reports whether a file or device, by whatever name, lies behind both volumes.
func shareStore(a, b config.Volume) bool {
	return slices.ContainsFunc(stores(a), func(x os.FileInfo) bool {
		return slices.ContainsFunc(stores(b), func(y os.FileInfo) bool { return os.SameFile(x, y) })
	})
}

func stores(v config.Volume) (all []os.FileInfo) {
	for _, p := range append([]string{v.Path}, v.Devices...) {
		if fi, err := os.Stat(p); err == nil {
			all = append(all, fi)
		}
	}
	return all
}
