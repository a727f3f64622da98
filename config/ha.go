package config

import (
	"fmt"
	"regexp"
	"slices"
)

// HA is what this node of a cluster shares with others: groups of volumes, each of which is
// active on one node at a time. The cluster manager decides on which one, by iser-target promote
// and demote; see docs/ha.
type HA struct {
	Node string `mapstructure:"node" json:"node,omitempty"` // the name of this node, different on each node
	// Store is a folder that all nodes reach, or that moves with the volumes. It has the owner of
	// each group, reservations and saved mode pages, and takes the place of admin.state_dir for
	// the volumes of groups.
	Store  string    `mapstructure:"store" json:"store,omitempty"`
	Groups []HAGroup `mapstructure:"groups" json:"groups,omitempty"`
	// Portals are those of other nodes. For targets whose volumes move, SendTargets and REPORT
	// TARGET PORT GROUPS report them to initiators. NVMe has subsystems[].remote.
	Portals []HAPortal `mapstructure:"portals" json:"portals,omitempty"`
}

// HAPortal is a portal of another node for iSCSI and iSER.
type HAPortal struct {
	Address string `mapstructure:"address" json:"address"` // IP:port; roce://IP[:port]
	Group   int    `mapstructure:"group" json:"group"`     // its portal group tag, which no portal here may have
}

// HAGroup is a group of volumes that move together.
type HAGroup struct {
	Name    string   `mapstructure:"name" json:"name"`       // what promote, demote and group take
	Volumes []string `mapstructure:"volumes" json:"volumes"` // names of volumes
	// Fencing says what keeps a node that has lost the group from writing to its volumes:
	// node, replication, reservation.
	Fencing string `mapstructure:"fencing" json:"fencing"`
	// Start is the state of the group when the node starts: standby (or nothing), active.
	Start string `mapstructure:"start" json:"start,omitempty"`
	// Grace is how long running commands may take when the group is given up, before they are
	// ended and their initiators repeat them.
	Grace Duration `mapstructure:"grace" json:"grace,omitempty"`
}

// Fencings are what a group can be fenced by.
var Fencings = []string{
	"node",        // the cluster's manager turns a lost node off before another one has the group
	"replication", // the storage below has one primary, and refuses all others (DRBD with fencing)
	"reservation", // the nodes' registrations on the shared disk below: a lost node's is preempted
}

// GroupOf returns the group that a volume moves with; nil: the volume stays.
func (h *HA) GroupOf(volume string) *HAGroup {
	for i := range h.Groups {
		if slices.Contains(h.Groups[i].Volumes, volume) {
			return &h.Groups[i]
		}
	}
	return nil
}

// groupName is what names of groups are made of: they are names of files, too.
var groupName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$`)

// checkHA checks that what moves between nodes is one thing on all of them, and that
// something keeps two nodes from having it at once.
func (c *Config) checkHA(r *report) {
	h := &c.HA
	if len(h.Groups) == 0 {
		if h.Node != "" || h.Store != "" || len(h.Portals) > 0 {
			r.add("ha.groups", "missing; node, store and portals are about the groups of volumes that move between nodes")
		}
		return
	}
	need(r, "ha.node", h.Node, "the name of this node, another one on each")
	if h.Store == "" {
		r.add("ha.store", "missing; name a folder that all nodes reach, or that moves with the volumes: reservations have to hold on the node that takes over")
	} else if h.Store == c.Admin.StateDir {
		r.add("ha.store", "is admin.state_dir, which is this node's own; name a folder that the nodes share")
	}
	groups, volumes := map[string]string{}, map[string]string{}
	for i := range h.Groups {
		g, key := &h.Groups[i], fmt.Sprintf("ha.groups[%d]", i)
		if !groupName.MatchString(g.Name) {
			r.add(key+".name", "%q is no name of a group; expected letters, digits, dots, dashes and underscores, at most 64", g.Name)
		} else if first, ok := groups[g.Name]; ok {
			r.add(key+".name", "%q is already the name of %s", g.Name, first)
		}
		groups[g.Name] = key
		if g.Fencing == "" {
			r.add(key+".fencing", "missing; without something that keeps a lost node from the data, two nodes can write at once. Say what does: node, replication or reservation; see docs/ha/README.md")
		} else {
			oneOf(r, key+".fencing", g.Fencing, Fencings...)
		}
		if g.Start != "" {
			oneOf(r, key+".start", g.Start, "standby", "active")
		}
		if g.Grace < 0 || g.Grace > maxGrace {
			r.add(key+".grace", "%v is not between 0s and %v", g.Grace, maxGrace)
		}
		if len(g.Volumes) == 0 {
			r.add(key+".volumes", "missing; name the volumes that move together")
		}
		for j, name := range g.Volumes {
			vkey := fmt.Sprintf("%s.volumes[%d]", key, j)
			if first, ok := volumes[name]; ok {
				r.add(vkey, "%s is already in %s", name, first)
			}
			volumes[name] = key
			if v := c.volume(name); v == nil {
				r.add(vkey, "there is no volume %q%s", name, didYouMean(name, names(c.Volumes)))
			} else {
				checkMoving(r, vkey, v)
			}
		}
	}
	c.checkMovingTargets(r, volumes)
	h.checkPortals(r, c)
}

// checkPortals checks portals of other nodes: no number of a group or a port, which are the
// same, stands for portals of two nodes.
func (h *HA) checkPortals(r *report, c *Config) {
	seen := map[Elsewhere]string{}
	for i, p := range h.Portals {
		key := fmt.Sprintf("ha.portals[%d]", i)
		c.checkElsewhere(r, key, p.Address, nil, seen)
		checkRange(r, key+".group", p.Group, 1, 65535)
		if j := slices.IndexFunc(c.Portals, func(own Portal) bool { return own.Group == p.Group }); j >= 0 {
			r.add(key+".group", "%d is that of portals[%d]; initiators would take a path to another node for one to this one. Give each node's portals groups of their own", p.Group, j)
		}
	}
}

// Moves reports whether a target has a volume that moves between nodes.
func (h *HA) Moves(t *Target) bool {
	return slices.ContainsFunc(t.LUNs, func(l LUN) bool { return h.GroupOf(l.Volume) != nil })
}

// checkMoving checks a volume that moves between nodes.
func checkMoving(r *report, key string, v *Volume) {
	switch {
	case v.Type != VolumeFile && v.Type != VolumeRaw:
		r.add(key, "%s is of type %s; what moves between nodes is a file on shared storage or a block device, which a logical volume that the cluster activates is as well", v.Name, v.Type)
	case v.Create:
		r.add(key, "%s has create: true; a node that does not find it must not take an empty one for it. Create it beforehand", v.Name)
	case v.Fault != Fault{}:
		r.add(key, "%s has fault, which is for tests of one node", v.Name)
	}
	if v.Size == 0 {
		r.add(key, "%s needs a size: a node that stands by tells it without opening the volume", v.Name)
	}
	if v.WWID == "" || v.Serial == "" {
		r.add(key, "%s needs a wwid and a serial, the same on every node (EUI, NGUID and UUID follow from the wwid): by them initiators know that it is one disk", v.Name)
	}
}

// checkMovingTargets checks what serves volumes that move.
func (c *Config) checkMovingTargets(r *report, volumes map[string]string) {
	moves := func(volume string) bool { return volumes[volume] != "" }
	for i, t := range c.Targets {
		if t.ALUAMode == "explicit" && slices.ContainsFunc(t.LUNs, func(l LUN) bool { return moves(l.Volume) }) {
			r.add(fmt.Sprintf("targets[%d].alua_mode", i), "explicit lets initiators make two nodes active that know nothing of each other; states of volumes in ha.groups change by iser-target promote and demote alone")
		}
	}
	for i, s := range c.Subsystems {
		if !slices.ContainsFunc(s.Namespaces, func(n Namespace) bool { return moves(n.Volume) }) {
			continue
		}
		key := fmt.Sprintf("subsystems[%d]", i)
		if s.MinCntlID == 0 || s.MaxCntlID == 0 {
			r.add(key+".min_cntlid", "each node needs controller identifiers of its own; give this one a range by min_cntlid and max_cntlid")
		}
		if s.Serial == "" {
			r.add(key+".serial", "missing; hosts take nodes for one subsystem by it, so it is the same on every node")
		}
	}
}
