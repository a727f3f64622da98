package nvmf

import (
	"fmt"

	"softiser/internal/nvme"
	"softiser/target/volume"
)

// Asymmetric namespace access. Each namespace is a group of its own, whose number is its
// identifier: volumes move between nodes one by one. The state is that of the volume through
// the portal group that the controller came by, whichever wire it was said on; so a LUN and
// a namespace of one volume change together.

// anaStates are NVMe's states for the volume's.
var anaStates = [...]nvme.ANAState{
	volume.PathOptimized: nvme.ANAStateOptimized, volume.PathNonOptimized: nvme.ANAStateNonOptimized,
	volume.PathInaccessible: nvme.ANAStateInaccessible, volume.PathLost: nvme.ANAStatePersistentLoss, volume.PathChanging: nvme.ANAStateChange,
}

// changeTime is the longest that a change of state takes, seconds: ANATT.
const changeTime = 10

// allStates in ANACAP: all five are reported, and a namespace's group does not change.
const allStates = 0x5F

// access returns the state of the namespace for the controller.
func (c *controller) access(n *namespace) nvme.ANAState {
	s, _ := n.vol.Path(c.group)
	return anaStates[s]
}

// anaLen is the length that hosts compute from Identify Controller. They read it in pieces,
// however many groups there are.
const anaLen = 16 + maxNSID*32 + maxNSID*4

// anaPage is the asymmetric namespace access log.
func (c *controller) anaPage(q nvme.GetLogPage) []byte {
	var groups []nvme.ANAGroup
	changes := c.sub.anaChanges.Load() + 1 // read before the states, so that a change in between is counted, and asked about again
	for _, n := range c.sub.list() {
		s, k := n.vol.Path(c.group)
		groups = append(groups, nvme.ANAGroup{ID: n.id, Changes: k + 1, State: anaStates[s], Namespaces: []uint32{n.id}})
	}
	b := nvme.AppendANA(make([]byte, 0, anaLen), changes, groups, q.ANAGroupsOnly())
	return b[:anaLen]
}

// groupsChanged tells the hosts that there is another group than before, or one less.
func (s *subsystem) groupsChanged() {
	s.anaChanges.Add(1)
	s.tell(eventANA)
}

// SetAccessState says how the volume of a namespace is reached through a portal group,
// over NVMe; hosts are told by an event. The access states of LUNs are those of their
// targets, and stay.
func (f *Frontend) SetAccessState(nqn string, nsid uint32, group uint16, s volume.PathState) error {
	sub := f.find(nqn)
	if sub == nil || sub == f.discovery {
		return fmt.Errorf("nvmf: there is no subsystem %s", nqn)
	}
	n := sub.namespace(nsid)
	if n == nil {
		return fmt.Errorf("nvmf: subsystem %s has no namespace %d", nqn, nsid)
	}
	var there []uint16
	for _, p := range f.cfg.Portals {
		if p.Config().Group == group {
			n.vol.SetPath(group, s)
			return nil
		}
		there = append(there, p.Config().Group)
	}
	return fmt.Errorf("nvmf: there is no portal of group %d; there are %v", group, there)
}
