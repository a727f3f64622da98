package nvme

import (
	"encoding/binary"
	"fmt"
)

// ANAState is the asymmetric access state of a group of namespaces through one
// controller.
type ANAState uint8

// Asymmetric access states.
const (
	ANAStateOptimized      ANAState = 0x1
	ANAStateNonOptimized   ANAState = 0x2
	ANAStateInaccessible   ANAState = 0x3
	ANAStatePersistentLoss ANAState = 0x4
	ANAStateChange         ANAState = 0xF
)

// String returns the state's name.
func (s ANAState) String() string {
	switch s {
	case ANAStateOptimized:
		return "optimized"
	case ANAStateNonOptimized:
		return "non-optimized"
	case ANAStateInaccessible:
		return "inaccessible"
	case ANAStatePersistentLoss:
		return "persistent-loss"
	case ANAStateChange:
		return "change"
	}
	return fmt.Sprintf("ANA state %d", uint8(s))
}

// Status returns how commands end in this state; Success if they are processed.
func (s ANAState) Status() Status {
	switch s {
	case ANAStateInaccessible:
		return ANAInaccessible
	case ANAStatePersistentLoss:
		return ANAPersistentLoss
	case ANAStateChange:
		return ANATransition
	}
	return Success
}

// ANAGroup is a group of namespaces that share a state.
type ANAGroup struct {
	ID         uint32
	Changes    uint64
	State      ANAState
	Namespaces []uint32 // ascending
}

const (
	anaHeader     = 16
	anaDescriptor = 32
	// anaGroupsOnly in Get Log Page's specific field leaves out the namespaces.
	anaGroupsOnly = 1
)

// ANAGroupsOnly reports whether c asks for the ANA log without namespaces.
func (c GetLogPage) ANAGroupsOnly() bool { return c.Specific()&anaGroupsOnly != 0 }

// AppendANA adds the asymmetric namespace access log.
//
//	  +------------------------------+
//	 0| change count (8)             |
//	 8| number of groups (2) | (6)   |
//	  +------------------------------+
//	 0| group (4)                    |
//	 4| number of namespaces (4)     |
//	 8| change count (8)             |
//	16| state | reserved (15)        |
//	32| namespaces (4 each)          |
//	  +------------------------------+
func AppendANA(dst []byte, changes uint64, groups []ANAGroup, groupsOnly bool) []byte {
	le := binary.LittleEndian
	dst, h := grow(dst, anaHeader)
	le.PutUint64(h, changes)
	le.PutUint16(h[8:], uint16(len(groups)))
	for _, g := range groups {
		var d []byte
		dst, d = grow(dst, anaDescriptor)
		le.PutUint32(d, g.ID)
		le.PutUint64(d[8:], g.Changes)
		d[16] = byte(g.State)
		if groupsOnly {
			continue
		}
		le.PutUint32(d[4:], uint32(len(g.Namespaces)))
		for _, n := range g.Namespaces {
			dst = le.AppendUint32(dst, n)
		}
	}
	return dst
}

// ParseANA reads the asymmetric namespace access log: change count and groups.
func ParseANA(b []byte) (uint64, []ANAGroup, error) {
	le := binary.LittleEndian
	if len(b) < anaHeader {
		return 0, nil, fmt.Errorf("nvme: ANA log of %d bytes", len(b))
	}
	changes, n := le.Uint64(b), int(le.Uint16(b[8:]))
	b = b[anaHeader:]
	var groups []ANAGroup
	for i := range n {
		if len(b) < anaDescriptor {
			return 0, nil, fmt.Errorf("nvme: ANA log with %d groups ends in group %d", n, i+1)
		}
		g := ANAGroup{ID: le.Uint32(b), Changes: le.Uint64(b[8:]), State: ANAState(b[16] & 0xF)}
		count := uint64(le.Uint32(b[4:]))
		b = b[anaDescriptor:]
		if count > uint64(len(b)/4) {
			return 0, nil, fmt.Errorf("nvme: ANA group %d has %d namespaces in %d bytes", g.ID, count, len(b))
		}
		if g.State == 0 || g.ID == 0 {
			return 0, nil, fmt.Errorf("nvme: ANA group %d in state %d", g.ID, g.State)
		}
		last := uint32(0)
		for range count {
			id := le.Uint32(b)
			if id <= last {
				return 0, nil, fmt.Errorf("nvme: ANA group %d has namespace %d after %d", g.ID, id, last)
			}
			g.Namespaces, last, b = append(g.Namespaces, id), id, b[4:]
		}
		groups = append(groups, g)
	}
	return changes, groups, nil
}
