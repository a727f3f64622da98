package volume

import (
	"fmt"
	"slices"
	"strings"
	"sync"
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

var pathNames = [...]string{
	PathOptimized: "optimized", PathNonOptimized: "non-optimized", PathInaccessible: "inaccessible", PathLost: "persistent-loss", PathChanging: "change",
}

// String returns the name of the state, as NVMe has it.
func (s PathState) String() string {
	if int(s) < len(pathNames) {
		return pathNames[s]
	}
	return fmt.Sprintf("PathState(%d)", uint8(s))
}

// MarshalText returns the name of the state in configurations and in JSON.
func (s PathState) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText sets the state by its name.
func (s *PathState) UnmarshalText(b []byte) error {
	if i := slices.Index(pathNames[:], string(b)); i >= 0 {
		*s = PathState(i)
		return nil
	}
	return fmt.Errorf("%q is no access state; want %s", b, strings.Join(pathNames[:PathChanging], ", "))
}

// path is the state through one portal group.
type path struct {
	group   uint16
	state   PathState
	changes uint64
}

// paths is the part of a volume that knows the groups of which something has been said.
type paths struct {
	announce func(Event)
	pathMu   sync.Mutex             // guards changes of known, which is read without it
	known    atomic.Pointer[[]path] // copy on write
}

func (p *paths) find(group uint16) *path {
	if l := p.known.Load(); l != nil {
		for i := range *l {
			if (*l)[i].group == group {
				return &(*l)[i]
			}
		}
	}
	return nil
}

// Path returns the state through a portal group, and how often it has changed.
func (p *paths) Path(group uint16) (PathState, uint64) {
	if at := p.find(group); at != nil {
		return at.state, at.changes
	}
	return PathOptimized, 0
}

// SetPath says how the volume is reached through a portal group; faces are told of a
// change. A LUN says it of its volume when its access state changes; the last one to say
// something counts.
func (p *paths) SetPath(group uint16, s PathState) {
	p.pathMu.Lock()
	old := p.find(group)
	if old != nil && old.state == s || old == nil && s == PathOptimized {
		p.pathMu.Unlock()
		return
	}
	var l []path
	if now := p.known.Load(); now != nil {
		l = slices.Clone(*now)
	}
	i := slices.IndexFunc(l, func(x path) bool { return x.group == group })
	if i < 0 {
		i, l = len(l), append(l, path{group: group})
	}
	l[i].state = s
	l[i].changes++
	p.known.Store(&l)
	p.pathMu.Unlock()
	p.announce(Event{Kind: PathChanged, Group: group})
}
