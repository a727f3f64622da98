package registry

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"softiser/config"
)

// What a reload does about targets and their LUNs.

// atStart is why most settings of the process are not changed.
const atStart = "takes effect when iser-target is started again"

// plan compares what is served with next. What goes comes first: its files may
// be wanted by what comes.
func (r *Registry) plan(next *config.Config) []step {
	r.mu.Lock()
	defer r.mu.Unlock()
	old := r.cfg
	var steps []step
	for i := range old.Targets {
		t := &old.Targets[i]
		if n := findTarget(next, t.IQN); n == nil || r.leaving[t.IQN] {
			steps = append(steps, r.removeTarget(t))
		} else {
			steps = append(steps, r.planRemovedLUNs(t, n)...)
		}
	}
	goes, comes := r.planSubsystems(next)
	steps = append(append(steps, goes...), r.planVolumes(next)...)
	for i := range next.Targets {
		t := &next.Targets[i]
		was := findTarget(old, t.IQN)
		if was == nil || r.leaving[t.IQN] {
			was = nil
			steps = append(steps, r.addTarget(next, t))
		} else {
			steps = append(steps, r.planAccess(next, was, t)...)
		}
		steps = append(steps, r.planLUNs(next, was, t)...)
	}
	return append(append(steps, comes...), r.planSettings(next)...)
}

func findTarget(c *config.Config, iqn string) *config.Target {
	if i := slices.IndexFunc(c.Targets, func(t config.Target) bool { return t.IQN == iqn }); i >= 0 {
		return &c.Targets[i]
	}
	return nil
}

func findLUN(t *config.Target, lun int) *config.LUN {
	if t == nil {
		return nil
	}
	if i := slices.IndexFunc(t.LUNs, func(l config.LUN) bool { return l.LUN == lun }); i >= 0 {
		return &t.LUNs[i]
	}
	return nil
}

func findVolume(c *config.Config, name string) (config.Volume, bool) {
	if i := slices.IndexFunc(c.Volumes, func(v config.Volume) bool { return v.Name == name }); i >= 0 {
		return c.Volumes[i], true
	}
	return config.Volume{}, false
}

// served returns the name of the volume that is served at p now, or "", and whether
// that is one whose removal has begun but not ended. The caller holds r.mu.
func (r *Registry) served(p place) (name string, leaving bool) {
	if o := r.volumes.at(p); o != nil {
		return r.volumes.description(o).Name, r.leavingPlaces[p]
	}
	return "", false
}

func lunName(iqn string, lun int) string { return fmt.Sprintf("%s LUN %d", iqn, lun) }

func (r *Registry) removeTarget(was *config.Target) step {
	return r.removeNode(was.IQN, func(ctx context.Context) error { return r.srv.RemoveTarget(ctx, was.IQN) }, func(c *config.Config) {
		c.Targets = append(deleteTarget(c.Targets, was.IQN), *was)
	})
}

func deleteTarget(ts []config.Target, iqn string) []config.Target {
	return slices.DeleteFunc(ts, func(t config.Target) bool { return t.IQN == iqn })
}

func (r *Registry) addTarget(next *config.Config, t *config.Target) step {
	return step{
		Change: Change{Action: "add", Object: t.IQN, Error: r.unlistened(next, t)},
		node:   t.IQN,
		do: func(context.Context) error {
			tt, err := targetConfig(next, t)
			if err != nil {
				return err
			}
			return r.srv.AddTarget(tt)
		},
		keep: func(c *config.Config) {
			if !r.isLeaving(t.IQN) { // else the step that removes it knows
				c.Targets = deleteTarget(c.Targets, t.IQN)
			}
		},
	}
}

// unlistened says why a target cannot be offered, "" if it can: the portals are those
// of the start.
func (r *Registry) unlistened(next *config.Config, t *config.Target) string {
	for _, p := range next.Portals {
		if slices.Contains(t.Portals, p.Listen) && !slices.ContainsFunc(r.cfg.Portals, func(r config.Portal) bool { return r.Group == p.Group }) {
			return fmt.Sprintf("portal %s is not there yet; a new portal %s", p.Listen, atStart)
		}
	}
	return ""
}

// planAccess compares who may log in, and what a target is called.
func (r *Registry) planAccess(next *config.Config, was, t *config.Target) (steps []step) {
	if !slices.Equal(was.Portals, t.Portals) {
		steps = append(steps, step{
			Change: Change{Action: "update", Object: t.IQN + " portals", Error: atStart},
			keep:   func(c *config.Config) { findTarget(c, t.IQN).Portals = was.Portals },
		})
	}
	if (was.ALUAMode == "explicit") != (t.ALUAMode == "explicit") {
		steps = append(steps, step{
			Change: Change{Action: "update", Object: t.IQN + " alua_mode", Error: atStart},
			keep:   func(c *config.Config) { findTarget(c, t.IQN).ALUAMode = was.ALUAMode },
		})
	}
	if was.Alias == t.Alias && was.Redirect == t.Redirect && reflect.DeepEqual(was.ACL, t.ACL) && reflect.DeepEqual(was.Auth, t.Auth) {
		return steps
	}
	return append(steps, step{
		Change: Change{Action: "update", Object: t.IQN + " auth, acl, alias, redirect"},
		do: func(context.Context) error {
			tt, err := targetConfig(next, t)
			if err != nil {
				return err
			}
			return r.srv.UpdateTarget(tt)
		},
		keep: func(c *config.Config) {
			x := findTarget(c, t.IQN)
			x.Alias, x.Redirect, x.ACL, x.Auth = was.Alias, was.Redirect, was.ACL, was.Auth
		},
	})
}

// planRemovedLUNs finds LUNs that only the old configuration has. Those that were
// added while the target ran are in neither, and stay.
func (r *Registry) planRemovedLUNs(was, now *config.Target) (steps []step) {
	for _, l := range was.LUNs {
		if name, _ := r.served(place{was.IQN, uint32(l.LUN)}); findLUN(now, l.LUN) == nil && name != "" {
			steps = append(steps, step{
				Change: Change{Action: "remove", Object: lunName(was.IQN, l.LUN)},
				frees:  []place{{was.IQN, uint32(l.LUN)}},
				take:   func(ctx context.Context) error { return r.RemoveLUN(ctx, was.IQN, uint16(l.LUN)) },
				keep:   func(c *config.Config) { keepLUN(c, was.IQN, l) },
			})
		}
	}
	return steps
}

// keepLUN makes l, which has not been changed, what c says.
func keepLUN(c *config.Config, iqn string, l config.LUN) {
	t := findTarget(c, iqn)
	if now := findLUN(t, l.LUN); now != nil {
		*now = l
	} else {
		t.LUNs = append(t.LUNs, l)
	}
}

// planLUNs finds LUNs to be added, which includes those whose volume could not be
// opened earlier, and those that are to be another volume.
func (r *Registry) planLUNs(next *config.Config, was, t *config.Target) (steps []step) {
	for _, l := range t.LUNs {
		v, _ := findVolume(next, l.Volume)
		object := lunName(t.IQN, l.LUN) + " = " + l.Volume
		add := func(ctx context.Context) error { return r.mapVolume(ctx, t.IQN, l, v) }
		before := findLUN(was, l.LUN)
		keep := func(c *config.Config) {
			if before != nil {
				keepLUN(c, t.IQN, *before)
			}
		}
		switch name, leaving := r.served(place{t.IQN, uint32(l.LUN)}); {
		case name == "" || r.leaving[t.IQN]:
			steps = append(steps, step{Change: Change{Action: "add", Object: object, Error: r.outOfGroup(l)}, do: add, node: t.IQN, serves: &v, volume: v.Name})
		case leaving || name != l.Volume || before != nil && before.ReadOnly != l.ReadOnly:
			steps = append(steps, step{
				Change: Change{Action: "replace", Object: object, Error: r.outOfGroup(l)},
				frees:  []place{{t.IQN, uint32(l.LUN)}},
				take:   func(ctx context.Context) error { return r.RemoveLUN(ctx, t.IQN, uint16(l.LUN)) },
				do:     add, keep: keep, node: t.IQN, serves: &v, volume: v.Name,
			})
		case before != nil && (before.ALUA != l.ALUA || !slices.Equal(before.ALUAGroups, l.ALUAGroups)):
			steps = append(steps, step{
				Change: Change{Action: "update", Object: object + " alua", Error: r.outOfGroup(l)},
				do:     func(context.Context) error { return r.setAccess(t.IQN, v, l) }, keep: keep,
			})
		}
	}
	return steps
}

// outOfGroup says why the access states of a LUN cannot be had, "" if they can: the
// portals are those of the start.
func (r *Registry) outOfGroup(l config.LUN) string {
	for _, g := range l.ALUAGroups {
		if why := r.noGroup(g.Group); why != "" {
			return why
		}
	}
	return ""
}

func (r *Registry) noGroup(group int) string {
	if !slices.ContainsFunc(r.cfg.Portals, func(p config.Portal) bool { return p.Group == group }) {
		return fmt.Sprintf("no portal of the running target belongs to group %d; a new portal %s", group, atStart)
	}
	return ""
}

// errMoves refuses to change the access states of what moves between nodes.
var errMoves = errors.New("the volume is in a group of ha.groups: its access states of an active group " + atStart)

// setAccess puts the access states of a LUN through every portal group that its target is
// reached by as the configuration says.
func (r *Registry) setAccess(iqn string, v config.Volume, l config.LUN) error {
	if r.groupOf(v.Name) != nil {
		return errMoves
	}
	lc, err := lunConfig(r.cfg, v, l)
	if err != nil {
		return err
	}
	var errs []error
	for _, g := range offered(r.cfg, findTarget(r.cfg, iqn)) {
		state, ok := lc.Access[uint16(g)]
		if !ok {
			state = lc.Access[0] // without any, the zero value: active/optimized
		}
		errs = append(errs, r.srv.SetAccessState(iqn, uint16(l.LUN), uint16(g), state))
	}
	return errors.Join(errs...)
}
