package registry

import (
	"context"
	"os"
	"slices"

	"softiser/config"
)

// foresee says of the steps of a dry run which of them could not be done, as far as
// that shows without doing them.
func (r *Registry) foresee(ctx context.Context, steps []step) {
	var freed []place
	absent := map[string]bool{} // targets and subsystems that cannot be added
	for _, s := range steps {
		if s.Error == "" {
			freed = append(freed, s.frees...)
		} else if s.serves == nil && s.node != "" {
			absent[s.node] = true
		}
	}
	closes := func(o *openVolume) bool {
		return !slices.ContainsFunc(r.volumes.placesOf(o), func(p place) bool { return !slices.Contains(freed, p) })
	}
	for i := range steps {
		s := &steps[i]
		if s.Error != "" || s.serves == nil {
			continue
		}
		if absent[s.node] {
			s.Error = s.node + " cannot be added"
			continue
		}
		s.Error = r.obstacle(ctx, *s.serves, closes)
	}
}

// obstacle says why a volume could not become a LUN when those that closes names have
// been closed, "" if nothing shows.
func (r *Registry) obstacle(ctx context.Context, v config.Volume, closes func(*openVolume) bool) string {
	end, err := r.volumes.begin(ctx, v.Name) // what is looked at may be with storage for a while
	if err != nil {
		return err.Error()
	}
	defer end()
	if o := r.volumes.find(v.Name); o != nil {
		fixed := withoutTunables(differing(r.volumes.description(o), v))
		if len(fixed) == 0 {
			return "" // it is open, and stays so
		}
		if !closes(o) {
			return errOpen(v, fixed).Error()
		}
	}
	if r.groupOf(v.Name) != nil {
		return "" // whether it can be opened is known when it is promoted
	}
	_, err = Probe(v, func(v config.Volume) bool {
		if v.Type == config.VolumeLVM && r.lvs.Group(v.VG) != nil {
			return true // one group, many volumes
		}
		return slices.ContainsFunc(r.volumes.all(), func(o *openVolume) bool { return closes(o) && shareStore(r.volumes.description(o), v) })
	})
	return text(err)
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
