package registry

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"softiser/config"
)

// What a reload does about NVMe subsystems and their namespaces.

// subsystemPlan plans subsystems and namespaces.
type subsystemPlan struct{ *planning }

// goes are the steps that take away.
func (p subsystemPlan) goes() (steps []step) {
	for i := range p.old.Subsystems {
		s := &p.old.Subsystems[i]
		if n := findSubsystem(p.next, s.NQN); n == nil || p.mapping.isLeaving(s.NQN) {
			steps = append(steps, p.removeSubsystem(s))
		} else {
			steps = append(steps, p.removedNamespaces(s, n)...)
		}
	}
	return steps
}

// comes are the steps that bring, and that change what stays.
func (p subsystemPlan) comes() (steps []step) {
	for i := range p.next.Subsystems {
		s := &p.next.Subsystems[i]
		was := findSubsystem(p.old, s.NQN)
		if was == nil || p.mapping.isLeaving(s.NQN) {
			was = nil
			steps = append(steps, p.addSubsystem(s))
		} else {
			steps = append(steps, p.hosts(was, s)...)
		}
		steps = append(steps, p.namespaces(was, s)...)
	}
	return steps
}

func deleteSubsystem(l []config.Subsystem, nqn string) []config.Subsystem {
	return slices.DeleteFunc(l, func(s config.Subsystem) bool { return s.NQN == nqn })
}

func namespaceName(nqn string, nsid int) string { return fmt.Sprintf("%s namespace %d", nqn, nsid) }

func (p subsystemPlan) removeSubsystem(was *config.Subsystem) step {
	return p.removeNode(was.NQN, func(ctx context.Context) error { return p.srv.RemoveSubsystem(ctx, was.NQN) }, func(c *config.Config) {
		c.Subsystems = append(deleteSubsystem(c.Subsystems, was.NQN), *was)
	})
}

func (p subsystemPlan) addSubsystem(s *config.Subsystem) step {
	return step{
		Change: Change{Action: "add", Object: s.NQN},
		node:   s.NQN,
		do:     func(context.Context) error { return p.srv.AddSubsystem(subsystemConfig(s)) },
		keep: func(c *config.Config) {
			if !p.mapping.isLeaving(s.NQN) { // otherwise the step that removes it keeps the configuration
				c.Subsystems = deleteSubsystem(c.Subsystems, s.NQN)
			}
		},
	}
}

// hosts compares who may connect, and how a subsystem presents itself.
func (p subsystemPlan) hosts(was, s *config.Subsystem) (steps []step) {
	access := false
	for _, key := range differing(*was, *s) {
		switch key {
		case "namespaces":
		case "hosts", "keys", "networks", "secure_channel":
			access = true
		case "remote":
			steps = append(steps, step{
				Change: Change{Action: "update", Object: s.NQN + " remote"},
				do:     func(context.Context) error { return p.srv.SetRemote(s.NQN, remotes(s.Remote)) },
				keep:   func(c *config.Config) { findSubsystem(c, s.NQN).Remote = was.Remote },
			})
		default:
			steps = append(steps, step{
				Change: Change{Action: "update", Object: s.NQN + " " + key, Error: atStart},
				keep: func(c *config.Config) {
					x := findSubsystem(c, s.NQN)
					x.Serial, x.MinCntlID, x.MaxCntlID = was.Serial, was.MinCntlID, was.MaxCntlID
				},
			})
		}
	}
	if !access {
		return steps
	}
	return append(steps, step{
		Change: Change{Action: "update", Object: s.NQN + " hosts, keys, networks"},
		do: func(context.Context) error {
			c := subsystemConfig(s)
			return p.srv.SetHosts(s.NQN, c.Hosts, c.SecureChannel)
		},
		keep: func(c *config.Config) {
			x := findSubsystem(c, s.NQN)
			x.Hosts, x.Keys, x.Networks, x.SecureChannel = was.Hosts, was.Keys, was.Networks, was.SecureChannel
		},
	})
}

// removedNamespaces finds namespaces that only the old configuration has. Those that
// were added while the target ran are in neither, and stay.
func (p subsystemPlan) removedNamespaces(was, now *config.Subsystem) (steps []step) {
	for _, n := range was.Namespaces {
		at := place{was.NQN, uint32(n.NSID)}
		if name, _ := p.mapping.served(at); findNamespace(now, n.NSID) == nil && (name != "" || p.mapping.comes(at) != nil) {
			steps = append(steps, step{
				Change: Change{Action: "remove", Object: namespaceName(was.NQN, n.NSID)},
				frees:  []place{at},
				take: func(ctx context.Context) error {
					return p.mapping.dismiss(ctx, at, func(ctx context.Context) error { return p.mapping.removeNamespace(ctx, at.node, at.id) })
				},
				keep: func(c *config.Config) { keepNamespace(c, was.NQN, n) },
			})
		}
	}
	return steps
}

// keepNamespace makes n, which has not been changed, what c says.
func keepNamespace(c *config.Config, nqn string, n config.Namespace) {
	s := findSubsystem(c, nqn)
	if s == nil {
		return
	}
	if now := findNamespace(s, n.NSID); now != nil {
		*now = n
	} else {
		s.Namespaces = append(s.Namespaces, n)
	}
}

// namespaces finds namespaces to be added, which includes those whose volume could not
// be opened earlier, and those that are to be another volume.
func (p subsystemPlan) namespaces(was, s *config.Subsystem) (steps []step) {
	for _, n := range s.Namespaces {
		v, _ := findVolume(p.next, n.Volume)
		at := place{s.NQN, uint32(n.NSID)}
		x := step{
			Change: Change{Action: "add", Object: namespaceName(s.NQN, n.NSID) + " = " + n.Volume, Error: p.spaceOutOfGroup(n)},
			do: func(ctx context.Context) error {
				return p.mapping.bring(ctx, at, n, func(c *coming) error { return p.mapping.addNamespace(ctx, c, p.next, s.NQN, n, v) })
			},
			node: s.NQN, serves: &v, at: at, volume: v.Name,
		}
		before, is := findNamespace(was, n.NSID), p.mapping.namespace(at)
		switch name, leaving := p.mapping.served(at); {
		case name == "" || p.mapping.isLeaving(s.NQN):
			steps = append(steps, x)
		case leaving || name != n.Volume || is.ReadOnly != n.ReadOnly:
			x.Action, x.frees = "replace", []place{at}
			x.take = func(ctx context.Context) error { return p.mapping.removeNamespace(ctx, at.node, at.id) }
			x.keep = func(c *config.Config) {
				if before != nil {
					keepNamespace(c, s.NQN, *before)
				}
			}
			steps = append(steps, x)
		case is.ANA != n.ANA || !slices.Equal(is.ANAGroups, n.ANAGroups):
			steps = append(steps, step{
				Change: Change{Action: "update", Object: x.Object + " ana", Error: x.Error},
				do:     func(context.Context) error { return p.setNamespaceAccess(s.NQN, n) },
				keep: func(c *config.Config) {
					if before != nil {
						keepNamespace(c, s.NQN, *before)
					}
				},
			})
		}
	}
	return steps
}

// spaceOutOfGroup is outOfGroup for a namespace.
func (p subsystemPlan) spaceOutOfGroup(n config.Namespace) string {
	for _, g := range n.ANAGroups {
		if why := p.noGroup(g.Group); why != "" {
			return why
		}
	}
	return ""
}

// setNamespaceAccess puts the access states of a namespace as the configuration says. One that
// says none any more follows the LUNs of its volume that do, or is reached through every group.
func (p subsystemPlan) setNamespaceAccess(nqn string, n config.Namespace) error {
	if p.groups.of(n.Volume) != nil {
		return errMoves
	}
	access, err := spaceAccess(n)
	if err != nil {
		return err
	}
	if access == nil && lunsNameAccess(p.next, n.Volume) {
		p.mapping.madeNamespace(nqn, n)
		return nil
	}
	var errs []error
	for _, q := range p.old.Portals {
		g := uint16(q.Group)
		state, ok := access[g]
		if !ok {
			state = access[0]
		}
		errs = append(errs, p.srv.SetNamespaceAccess(nqn, uint32(n.NSID), g, state))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	p.mapping.madeNamespace(nqn, n)
	return nil
}

// lunsNameAccess reports whether the configuration gives a LUN of the volume access states.
func lunsNameAccess(c *config.Config, volume string) bool {
	for _, t := range c.Targets {
		if slices.ContainsFunc(t.LUNs, func(l config.LUN) bool { return l.Volume == volume && l.NamesAccess() }) {
			return true
		}
	}
	return false
}
