package scsi

import (
	"fmt"
	"sync"
	"sync/atomic"

	spc "softiser/internal/scsi"
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

// PortGroup is a target port group: target ports that share an access state.
type PortGroup struct {
	ID        uint16      // not 0
	Ports     []uint16    // relative target port identifiers, unique in the device
	State     AccessState // at start-up
	Preferred bool
}

// portGroup is a group at run time. The state covers all logical units.
type portGroup struct {
	id        uint16
	ports     []uint16
	preferred bool
	state     atomic.Uint32 // AccessState
	cause     atomic.Uint32 // how it changed last: 0 never, 1 explicitly, 2 implicitly
}

// alua holds the target port groups of a device.
type alua struct {
	mu     sync.Mutex // serialises changes of state
	groups []*portGroup
}

func (a *alua) init(cfg []PortGroup) error {
	if len(cfg) == 0 {
		cfg = []PortGroup{{ID: 1, Ports: []uint16{1}}}
	}
	ids, ports := map[uint16]bool{}, map[uint16]bool{}
	for _, c := range cfg {
		if c.ID == 0 || ids[c.ID] {
			return fmt.Errorf("target port group %d: identifiers must be unique and not 0", c.ID)
		}
		if !settable(c.State) && c.State != Offline {
			return fmt.Errorf("target port group %d cannot start in state %v", c.ID, c.State)
		}
		ids[c.ID] = true
		g := &portGroup{id: c.ID, ports: c.Ports, preferred: c.Preferred}
		g.state.Store(uint32(c.State))
		for _, p := range c.Ports {
			if p == 0 || ports[p] {
				return fmt.Errorf("target port group %d: relative port %d must be unique and not 0", c.ID, p)
			}
			ports[p] = true
		}
		a.groups = append(a.groups, g)
	}
	return nil
}

// settable reports whether SET TARGET PORT GROUPS and SetAccessState may ask for s.
func settable(s AccessState) bool { return s <= Unavailable }

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

// allows reports whether a command may run through the group in its present
// state; if not, it has ended the task.
func (g *portGroup) allows(t *Task) bool {
	var asc spc.ASC
	switch AccessState(g.state.Load()) {
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

// allPorts returns every relative target port of the device.
func (a *alua) allPorts() []uint16 {
	var ps []uint16
	for _, g := range a.groups {
		ps = append(ps, g.ports...)
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

// setGroup changes the state of g; by is the nexus that asked for it, which
// needs no telling.
func (d *Device) setGroup(g *portGroup, s AccessState, cause uint32, by *Nexus) {
	d.alua.mu.Lock()
	old := AccessState(g.state.Swap(uint32(s)))
	g.cause.Store(cause)
	d.alua.mu.Unlock()
	if old == s {
		return
	}
	for _, lu := range d.LUs() {
		lu.attention(spc.ASCALUAStateChanged, func(n *Nexus) bool { return n != by })
	}
}

// SetAccessState changes the access state of a target port group from this
// side (an implicit transition). Initiators learn it by unit attention.
func (d *Device) SetAccessState(group uint16, s AccessState) error {
	g := d.alua.group(group)
	if g == nil {
		return fmt.Errorf("target %s has no target port group %d", d.cfg.Name, group)
	}
	if !settable(s) && s != Offline && s != Transitioning {
		return fmt.Errorf("target %s: %v is not an access state", d.cfg.Name, s)
	}
	d.setGroup(g, s, 2, nil)
	return nil
}
