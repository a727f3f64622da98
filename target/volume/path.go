package volume

import (
	"slices"
	"sync/atomic"
)

// PathState is how commands reach a volume through a group of portals: what asymmetric
// access of SCSI and of NVMe have in common. A volume of which nothing has been said is
// reached through every group.
type PathState uint8

// Path states.
const (
	PathOptimized PathState = iota
	PathNonOptimized
	PathInaccessible // for now
	PathLost         // for ever
	PathChanging
)

// path is the state through one portal group.
type path struct {
	group   uint16
	state   PathState
	changes uint64
}

// paths are the groups of which something has been said; copy on write, under pathMu.
type paths struct{ now atomic.Pointer[[]path] }

func (p *paths) find(group uint16) *path {
	if l := p.now.Load(); l != nil {
		for i := range *l {
			if (*l)[i].group == group {
				return &(*l)[i]
			}
		}
	}
	return nil
}

// Path returns the state through a portal group, and how often it has changed.
func (v *Volume) Path(group uint16) (PathState, uint64) {
	if p := v.paths.find(group); p != nil {
		return p.state, p.changes
	}
	return PathOptimized, 0
}

// SetPath says how the volume is reached through a portal group; faces are told of a
// change. A LUN says it of its volume when its access state changes; the last one to say
// something counts.
func (v *Volume) SetPath(group uint16, s PathState) {
	v.pathMu.Lock()
	old := v.paths.find(group)
	if old != nil && old.state == s || old == nil && s == PathOptimized {
		v.pathMu.Unlock()
		return
	}
	var l []path
	if now := v.paths.now.Load(); now != nil {
		l = slices.Clone(*now)
	}
	i := slices.IndexFunc(l, func(p path) bool { return p.group == group })
	if i < 0 {
		i, l = len(l), append(l, path{group: group})
	}
	l[i].state = s
	l[i].changes++
	v.paths.now.Store(&l)
	v.pathMu.Unlock()
	v.notify(Event{Kind: PathChanged, Group: group})
}
