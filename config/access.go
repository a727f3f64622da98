package config

import (
	"cmp"
	"fmt"
	"slices"
)

// aluaStates are the names of asymmetric access states of LUNs, anaStates those of namespaces.
var (
	aluaStates = []string{"active-optimized", "active-non-optimized", "standby", "unavailable", "offline"}
	anaStates  = []string{"optimized", "non-optimized", "inaccessible", "persistent-loss"}
)

// aluaAsANA are the states of a LUN as a namespace of its volume has them.
var aluaAsANA = map[string]string{
	"active-optimized": "optimized", "active-non-optimized": "non-optimized",
	"standby": "inaccessible", "unavailable": "inaccessible", "offline": "persistent-loss",
}

// checkLUNAccess checks the access states of a LUN.
func (c *Config) checkLUNAccess(r *report, key string, l *LUN) {
	if l.ALUA != "" {
		oneOf(r, key+".alua", l.ALUA, aluaStates...)
	}
	for k, g := range l.ALUAGroups {
		gkey := fmt.Sprintf("%s.alua_groups[%d]", key, k)
		oneOf(r, gkey+".state", g.State, aluaStates...)
		c.checkGroup(r, gkey, g.Group)
	}
}

// checkNamespaceAccess checks the access states of a namespace.
func (c *Config) checkNamespaceAccess(r *report, key string, n *Namespace) {
	if n.ANA != "" {
		oneOf(r, key+".ana", n.ANA, anaStates...)
	}
	for k, g := range n.ANAGroups {
		gkey := fmt.Sprintf("%s.ana_groups[%d]", key, k)
		oneOf(r, gkey+".state", g.State, anaStates...)
		c.checkGroup(r, gkey, g.Group)
	}
}

func (c *Config) checkGroup(r *report, key string, group int) {
	if !slices.ContainsFunc(c.Portals, func(p Portal) bool { return p.Group == group }) {
		r.add(key+".group", "no portal belongs to group %d", group)
	}
}

// NamesAccess reports whether the configuration says in which state the namespace is.
func (n *Namespace) NamesAccess() bool { return n.ANA != "" || len(n.ANAGroups) > 0 }

// Access returns the state through a portal group, in the words of the file.
func (n *Namespace) Access(group int) string {
	for _, g := range n.ANAGroups {
		if g.Group == group {
			return g.State
		}
	}
	return cmp.Or(n.ANA, "optimized")
}

// NamesAccess reports whether the configuration says in which state the LUN is.
func (l *LUN) NamesAccess() bool { return l.ALUA != "" || len(l.ALUAGroups) > 0 }

// asANA is the state of the LUN through a portal group, in the words of a namespace.
func (l *LUN) asANA(group int) string {
	for _, g := range l.ALUAGroups {
		if g.Group == group {
			return aluaAsANA[g.State]
		}
	}
	return aluaAsANA[cmp.Or(l.ALUA, "active-optimized")]
}

// checkOneAccess finds volumes that are namespaces and of which two places say different
// access states: a volume has one, and the last that said something would count.
func (c *Config) checkOneAccess(r *report) {
	type voice struct {
		key   string
		state func(group int) string
	}
	voices, spaces := map[string][]voice{}, map[string]bool{}
	for i := range c.Targets {
		for j := range c.Targets[i].LUNs {
			if l := &c.Targets[i].LUNs[j]; l.NamesAccess() {
				voices[l.Volume] = append(voices[l.Volume], voice{fmt.Sprintf("targets[%d].luns[%d]", i, j), l.asANA})
			}
		}
	}
	for i := range c.Subsystems {
		for j := range c.Subsystems[i].Namespaces {
			n := &c.Subsystems[i].Namespaces[j]
			spaces[n.Volume] = true
			if n.NamesAccess() {
				voices[n.Volume] = append(voices[n.Volume], voice{fmt.Sprintf("subsystems[%d].namespaces[%d]", i, j), n.Access})
			}
		}
	}
	for _, v := range c.Volumes {
		l := voices[v.Name]
		for _, p := range c.Portals {
			for i := 1; spaces[v.Name] && i < len(l); i++ {
				if a, b := l[0].state(p.Group), l[i].state(p.Group); a != b {
					r.add(l[i].key, "through portal group %d %s is %s here and %s at %s; a volume with a namespace is in one state for all", p.Group, v.Name, b, a, l[0].key)
				}
			}
		}
	}
}
