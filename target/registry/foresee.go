package registry

import (
	"context"
	"os"
	"slices"

	"softiser/config"
)

// forecast is what a dry run expects.
type forecast struct {
	stores *stores
	groups *groups
	freed  []place // what the steps take away
}

// foresee says of the steps of a dry run which of them could not be done, as far as
// that shows without doing them.
func foresee(ctx context.Context, st *stores, g *groups, steps []step) {
	f := forecast{stores: st, groups: g}
	absent := map[string]bool{} // targets and subsystems that cannot be added
	for _, s := range steps {
		if s.Error == "" {
			f.freed = append(f.freed, s.frees...)
		} else if s.serves == nil && s.node != "" {
			absent[s.node] = true
		}
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
		s.Error = f.obstacle(ctx, *s.serves)
	}
}

// closes reports whether all places of an open volume are taken away.
func (f *forecast) closes(o *openVolume) bool {
	return !slices.ContainsFunc(f.groups.volumes.placesOf(o), func(p place) bool { return !slices.Contains(f.freed, p) })
}

// obstacle says why a volume could not become a LUN or a namespace when those that close
// have been closed, "" if nothing shows.
func (f *forecast) obstacle(ctx context.Context, v config.Volume) string {
	volumes := f.groups.volumes
	end, err := volumes.begin(ctx, v.Name) // what is looked at may be with storage for a while
	if err != nil {
		return err.Error()
	}
	defer end()
	if o := volumes.find(v.Name); o != nil {
		fixed := withoutTunables(differing(volumes.description(o), v))
		if len(fixed) == 0 {
			return "" // it is open, and stays so
		}
		if !f.closes(o) {
			return errOpen(v, fixed).Error()
		}
	}
	if f.groups.of(v.Name) != nil {
		return "" // whether it can be opened is known when it is promoted
	}
	_, err = Probe(v, func(v config.Volume) bool {
		if v.Type == config.VolumeLVM && f.stores.lvs.Group(v.VG) != nil {
			return true // one group, many volumes
		}
		return slices.ContainsFunc(volumes.all(), func(o *openVolume) bool { return f.closes(o) && ShareStore(volumes.description(o), v) })
	})
	return text(err)
}

// ShareStore reports whether a file or device, by whatever name, lies behind both volumes.
func ShareStore(a, b config.Volume) bool {
	return slices.ContainsFunc(storeFiles(a), func(x os.FileInfo) bool {
		return slices.ContainsFunc(storeFiles(b), func(y os.FileInfo) bool { return os.SameFile(x, y) })
	})
}

func storeFiles(v config.Volume) (all []os.FileInfo) {
	for _, p := range append([]string{v.Path}, v.Devices...) {
		if fi, err := os.Stat(p); err == nil {
			all = append(all, fi)
		}
	}
	return all
}
