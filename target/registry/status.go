package registry

import (
	"cmp"
	"slices"

	"softiser/config"
	"softiser/target"
)

// Status is what the server serves and, with the reason, what it should and does not:
// LUNs and namespaces of the configuration whose volume could not be opened; and the volumes.
func (r *Registry) Status() target.Status {
	st := r.srv.Status()
	cfg := r.config()
	for i := range st.Targets {
		t := &st.Targets[i]
		c := findTarget(cfg, t.Name)
		if c == nil {
			continue
		}
		for _, l := range c.LUNs {
			if !slices.ContainsFunc(t.LUNs, func(s target.LUNStatus) bool { return int(s.LUN) == l.LUN }) {
				t.LUNs = append(t.LUNs, r.mapping.unservedLUN(cfg, c.IQN, l))
			}
		}
		slices.SortFunc(t.LUNs, func(x, y target.LUNStatus) int { return int(x.LUN) - int(y.LUN) })
	}
	for i := range st.Subsystems {
		s := &st.Subsystems[i]
		c := findSubsystem(cfg, s.NQN)
		if c == nil {
			continue
		}
		for _, n := range c.Namespaces {
			if !slices.ContainsFunc(s.Namespaces, func(x target.NamespaceStatus) bool { return int(x.NSID) == n.NSID }) {
				s.Namespaces = append(s.Namespaces, r.mapping.unservedNamespace(cfg, c.NQN, n))
			}
		}
		slices.SortFunc(s.Namespaces, func(x, y target.NamespaceStatus) int { return cmp.Compare(x.NSID, y.NSID) })
	}
	for _, o := range r.volumes.all() {
		v := r.srv.VolumeStatus(o.dev)
		v.Name = r.volumes.description(o).Name
		for _, p := range r.volumes.placesOf(o) {
			v.Served = append(v.Served, p.String())
		}
		slices.Sort(v.Served)
		v.Snapshots = r.snapshots.Status(v.Name)
		st.Volumes = append(st.Volumes, v)
	}
	st.Groups = r.groups.status()
	if r.load != nil {
		st.Reload = r.reloads.status()
	}
	return st
}

// unservedLUN describes a LUN that is not there.
func (m *mapping) unservedLUN(cfg *config.Config, iqn string, l config.LUN) target.LUNStatus {
	v, _ := findVolume(cfg, l.Volume)
	return target.LUNStatus{
		LUN: uint16(l.LUN), Volume: l.Volume, Backend: string(v.Type), Size: int64(v.Size), BlockSize: int(v.BlockSize), ReadOnly: v.ReadOnly || l.ReadOnly,
		Error: cmp.Or(m.reason(place{iqn, uint32(l.LUN)}), "removed by iser-target lun remove; iser-target reload brings it back"),
	}
}

// unservedNamespace describes a namespace that is not there.
func (m *mapping) unservedNamespace(cfg *config.Config, nqn string, n config.Namespace) target.NamespaceStatus {
	v, _ := findVolume(cfg, n.Volume)
	return target.NamespaceStatus{
		NSID: uint32(n.NSID), Volume: n.Volume, Backend: string(v.Type), Size: int64(v.Size), BlockSize: int(v.BlockSize), ReadOnly: v.ReadOnly || n.ReadOnly,
		Error: cmp.Or(m.reason(place{nqn, uint32(n.NSID)}), "removed by iser-target namespace remove; iser-target reload brings it back"),
	}
}
