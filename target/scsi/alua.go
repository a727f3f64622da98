package scsi

import (
	"fmt"
	"sync/atomic"

	"softiser/internal/spc"

	"softiser/target/volume"
)

// AccessState is the asymmetric access state of a target port group (SPC-4
// §5.15.2.4).
type AccessState uint8

// Asymmetric access states, numbered as in REPORT TARGET PORT GROUPS.
const (
	ActiveOptimized    AccessState = 0x0
	ActiveNonOptimized AccessState = 0x1
	Standby            AccessState = 0x2
	Unavailable        AccessState = 0x3
	Offline            AccessState = 0xE
	Transitioning      AccessState = 0xF
)

// String returns the name of the state.
func (s AccessState) String() string {
	switch s {
	case ActiveOptimized:
		return "active/optimized"
	case ActiveNonOptimized:
		return "active/non-optimized"
	case Standby:
		return "standby"
	case Unavailable:
		return "unavailable"
	case Offline:
		return "offline"
	case Transitioning:
		return "transitioning"
	}
	return fmt.Sprintf("access state %Xh", uint8(s))
}

// accessNames are the states as configuration, commands and status have them.
var accessNames = map[AccessState]string{
	ActiveOptimized: "active-optimized", ActiveNonOptimized: "active-non-optimized", Standby: "standby",
	Unavailable: "unavailable", Offline: "offline", Transitioning: "transitioning",
}

// MarshalText returns the name of the state in configurations and in JSON.
func (s AccessState) MarshalText() ([]byte, error) {
	if name, ok := accessNames[s]; ok {
		return []byte(name), nil
	}
	return nil, fmt.Errorf("%v has no name", s)
}

// UnmarshalText sets the state by its name.
func (s *AccessState) UnmarshalText(b []byte) error {
	for v, name := range accessNames {
		if name == string(b) {
			*s = v
			return nil
		}
	}
	return fmt.Errorf("%q is no access state; want active-optimized, active-non-optimized, standby, unavailable or offline", b)
}

// PortGroup is a target port group: target ports that share an access state.
type PortGroup struct {
	ID        uint16      // not 0
	Ports     []uint16    // relative target port identifiers, unique in the device
	State     AccessState // at start-up, of units that have no other; see LUConfig.Access
	Preferred bool
}

// portGroup is a group at run time.
type portGroup struct {
	index     int // in alua.groups and LU.paths
	id        uint16
	ports     []uint16
	preferred bool
	initial   AccessState
}

// path is the access state of one target port group for one logical unit: each
// unit has states of its own, as an array does whose volumes belong to different
// controllers.
type path struct {
	state atomic.Uint32 // AccessState
	cause atomic.Uint32 // how it changed last: 0 never, 1 explicitly, 2 implicitly
}

// alua holds the target port groups of a device; it does not change.
type alua struct {
	groups []*portGroup
	remote []PortGroup // of other nodes
}

// init takes the groups of this node, by default one with the port 1, and those of others.
// It refuses a group or a port that is named twice or out of range.
func (a *alua) init(cfg, remote []PortGroup) error {
	if len(cfg) == 0 {
		cfg = []PortGroup{{ID: 1, Ports: []uint16{1}}}
	}
	ids, ports := map[uint16]bool{}, map[uint16]bool{}
	for _, c := range cfg {
		if c.ID == 0 || ids[c.ID] {
			return fmt.Errorf("target port group %d: identifiers must be unique and not 0", c.ID)
		}
		if !initial(c.State) {
			return fmt.Errorf("target port group %d cannot start in state %v", c.ID, c.State)
		}
		ids[c.ID] = true
		g := &portGroup{index: len(a.groups), id: c.ID, ports: c.Ports, preferred: c.Preferred, initial: c.State}
		for _, p := range c.Ports {
			if p == 0 || ports[p] {
				return fmt.Errorf("target port group %d: relative port %d must be unique and not 0", c.ID, p)
			}
			ports[p] = true
		}
		a.groups = append(a.groups, g)
	}
	for _, c := range remote {
		if c.ID == 0 || ids[c.ID] {
			return fmt.Errorf("target port group %d of another node: there is one of that number here, or it is 0", c.ID)
		}
		ids[c.ID] = true
		for _, p := range c.Ports {
			if p == 0 || ports[p] {
				return fmt.Errorf("target port group %d of another node: relative port %d must be unique and not 0", c.ID, p)
			}
			ports[p] = true
		}
	}
	a.remote = remote
	return nil
}

// explicitALUA reports whether initiators may change the unit's access states.
func explicitALUA(lu *LU) bool { return lu.dev.cfg.ExplicitALUA }

// tpgs is what INQUIRY says of the access states: 1 changed by this side only, 3 by
// initiators too.
func (d *Device) tpgs() byte {
	if d.cfg.ExplicitALUA {
		return 3
	}
	return 1
}

// settable reports whether SET TARGET PORT GROUPS and SetAccessState may ask for s.
func settable(s AccessState) bool { return s <= Unavailable }

// initial reports whether a group may be in state s at start-up.
func initial(s AccessState) bool { return settable(s) || s == Offline }

// initPaths sets the states that a unit begins with: want tells them by group, 0
// standing for every group that it does not name.
func (lu *LU) initPaths(want map[uint16]AccessState) error {
	a := &lu.dev.alua
	for id, s := range want {
		if id != 0 && a.group(id) == nil {
			return fmt.Errorf("access state %v of target port group %d: the target has no such group", s, id)
		}
		if !initial(s) {
			return fmt.Errorf("target port group %d cannot start in state %v", id, s)
		}
	}
	lu.paths = make([]path, len(a.groups))
	for i, g := range a.groups {
		s, ok := want[g.id]
		if !ok {
			if s, ok = want[0]; !ok {
				s = g.initial
			}
		}
		lu.paths[i].state.Store(uint32(s))
	}
	return nil
}

// port returns the group of a relative target port; 0 stands for the first.
func (a *alua) port(rel uint16) (*portGroup, uint16, error) {
	for _, g := range a.groups {
		for _, p := range g.ports {
			if p == rel || rel == 0 {
				return g, p, nil
			}
		}
	}
	return nil, 0, fmt.Errorf("no target port group has relative port %d", rel)
}

// allows reports whether a command may run through the path in its present
// state; if not, it has ended the task.
func (p *path) allows(t *Task) bool {
	var asc spc.ASC
	switch AccessState(p.state.Load()) {
	case ActiveOptimized, ActiveNonOptimized:
		return true
	case Standby:
		if t.op.flags&(fStandby|fUnavail) != 0 {
			return true
		}
		asc = spc.ASCAccessStandby
	case Unavailable:
		if t.op.has(fUnavail) {
			return true
		}
		asc = spc.ASCAccessUnavailable
	case Offline:
		if t.op.has(fUnavail) {
			return true
		}
		asc = spc.ASCAccessOffline
	default:
		if t.op.has(fUnavail) {
			return true
		}
		asc = spc.ASCAccessTransition
	}
	t.fail(spc.KeyNotReady, asc)
	return false
}

// allPorts returns every relative target port of the device, those on other nodes included.
func (a *alua) allPorts() []uint16 {
	var ps []uint16
	for _, g := range a.groups {
		ps = append(ps, g.ports...)
	}
	for _, g := range a.remote {
		ps = append(ps, g.Ports...)
	}
	return ps
}

func (a *alua) group(id uint16) *portGroup {
	for _, g := range a.groups {
		if g.id == id {
			return g
		}
	}
	return nil
}

// setPath changes the state of group g for the unit; by is the nexus that asked
// for it, which needs no telling. Every other nexus of the unit learns it,
// whatever port it uses: its view of the groups is out of date.
func (lu *LU) setPath(g *portGroup, s AccessState, cause uint32, by *Nexus) {
	p := &lu.paths[g.index]
	p.cause.Store(cause)
	lu.vol.SetPath(g.id, pathStates[s])
	if AccessState(p.state.Swap(uint32(s))) != s {
		lu.attention(spc.ASCALUAStateChanged, func(n *Nexus) bool { return n != by })
	}
}

// pathStates are the states as all wires of a volume know them.
var pathStates = map[AccessState]volume.PathState{
	ActiveOptimized: volume.PathOptimized, ActiveNonOptimized: volume.PathNonOptimized, Standby: volume.PathInaccessible,
	Unavailable: volume.PathInaccessible, Offline: volume.PathLost, Transitioning: volume.PathChanging,
}

// tellPaths tells the volume the states that the configuration gives the unit.
func (lu *LU) tellPaths() {
	if len(lu.cfg.Access) == 0 {
		return
	}
	for _, g := range lu.dev.alua.groups {
		lu.vol.SetPath(g.id, pathStates[AccessState(lu.paths[g.index].state.Load())])
	}
}

// Path returns the state as all wires of a volume know it.
func (s AccessState) Path() volume.PathState { return pathStates[s] }

// AccessStates returns the state of each target port group for the unit.
func (lu *LU) AccessStates() map[uint16]AccessState {
	m := make(map[uint16]AccessState, len(lu.paths))
	for _, g := range lu.dev.alua.groups {
		m[g.id] = AccessState(lu.paths[g.index].state.Load())
	}
	return m
}

// numbers are those of the groups of this node.
func (a *alua) numbers() (ids []uint16) {
	for _, g := range a.groups {
		ids = append(ids, g.id)
	}
	return ids
}
