package registry

import (
	"slices"
	"strings"

	"go.uber.org/zap"

	"softiser/config"
	"softiser/target/scsi"
	"softiser/target/volume"
)

// show gives every LUN and namespace of a group the access state that goes with the
// group's.
func show(b *common, group config.HAGroup, now GroupState) {
	cfg := b.config()
	for _, m := range members(b, group.Volumes) {
		state := now
		if state == GroupActive && !m.dev.Attached() { // the volume was added to an active group, and could not be opened
			state = GroupStuck
		}
		for _, p := range b.volumes.placesOf(m.open) {
			if strings.HasPrefix(p.node, "nqn.") {
				continue // it follows the volume, below
			}
			for _, q := range offered(cfg, findTarget(cfg, p.node)) {
				if err := b.srv.SetAccessState(p.node, uint16(p.id), uint16(q), state.access(lunAccess(cfg, p, q))); err != nil {
					b.log.Warn("access state", zap.String("group", group.Name), zap.Error(err))
				}
			}
		}
		for _, q := range cfg.Portals {
			s := state.access(scsi.ActiveOptimized).Path()
			if state == GroupActive {
				s = activePath(cfg, b.volumes.placesOf(m.open), q.Group)
			}
			m.vol.SetPath(uint16(q.Group), s)
		}
	}
}

// offered returns the portal groups through which a target is reached; nil stands for one
// that the configuration does not have, which all portals lead to.
func offered(c *config.Config, t *config.Target) (groups []int) {
	for _, p := range c.Portals {
		through := t == nil || len(t.Portals) == 0 || slices.Contains(t.Portals, p.Listen)
		if through && !slices.Contains(groups, p.Group) {
			groups = append(groups, p.Group)
		}
	}
	return groups
}

// lunAccess is the state that the configuration gives a LUN through a portal group.
func lunAccess(c *config.Config, p place, group int) scsi.AccessState {
	l := findLUN(findTarget(c, p.node), int(p.id))
	if l == nil {
		return scsi.ActiveOptimized
	}
	name := l.ALUA
	for _, g := range l.ALUAGroups {
		if g.Group == group {
			name = g.State
		}
	}
	var state scsi.AccessState
	if name == "" || state.UnmarshalText([]byte(name)) != nil { // it has been checked
		return scsi.ActiveOptimized
	}
	return state
}

// activePath is the state of an active volume through a portal group for hosts of NVMe:
// what one of its namespaces says, or else one of its LUNs.
func activePath(c *config.Config, places []place, group int) volume.PathState {
	state := volume.PathOptimized
	for _, p := range places {
		if n := findNamespace(findSubsystem(c, p.node), int(p.id)); n != nil && n.NamesAccess() {
			var s volume.PathState
			if s.UnmarshalText([]byte(n.Access(group))) == nil {
				return s
			}
		}
		if s := lunAccess(c, p, group).Path(); s != volume.PathOptimized {
			state = s
		}
	}
	return state
}
