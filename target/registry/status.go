package registry

import (
	"slices"

	"softiser/config"
	"softiser/target"
)

// Status is what the server serves and, with the reason, what it should and does not:
// LUNs of the configuration whose volume could not be opened.
func (r *Registry) Status() target.Status {
	st := r.srv.Status()
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range st.Targets {
		t := &st.Targets[i]
		c := findTarget(r.cfg, t.Name)
		if c == nil {
			continue
		}
		for _, l := range c.LUNs {
			if slices.ContainsFunc(t.LUNs, func(s target.LUNStatus) bool { return int(s.LUN) == l.LUN }) {
				continue
			}
			t.LUNs = append(t.LUNs, r.unserved(c.IQN, l))
		}
		slices.SortFunc(t.LUNs, func(x, y target.LUNStatus) int { return int(x.LUN) - int(y.LUN) })
	}
	return st
}

// unserved describes a LUN that is not there. The caller holds r.mu.
func (r *Registry) unserved(iqn string, l config.LUN) target.LUNStatus {
	v, _ := findVolume(r.cfg, l.Volume)
	s := target.LUNStatus{
		LUN: uint16(l.LUN), Volume: l.Volume, Backend: string(v.Type), Size: int64(v.Size), BlockSize: int(v.BlockSize), ReadOnly: v.ReadOnly || l.ReadOnly,
		Error: r.reasons[place{iqn, uint32(l.LUN)}],
	}
	if s.Error == "" {
		s.Error = "removed by iser-target lun remove; iser-target reload brings it back"
	}
	return s
}
