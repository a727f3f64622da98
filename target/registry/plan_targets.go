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

// targetPlan plans targets and LUNs.
type targetPlan struct{ *planning }

// goes are the steps that take away.
func (p targetPlan) goes() (steps []step) {
	for i := range p.old.Targets {
		t := &p.old.Targets[i]
		if n := findTarget(p.next, t.IQN); n == nil || p.mapping.isLeaving(t.IQN) {
			steps = append(steps, p.removeTarget(t))
		} else {
			steps = append(steps, p.removedLUNs(t, n)...)
		}
	}
	return steps
}

// comes are the steps that bring, and that change what stays.
func (p targetPlan) comes() (steps []step) {
	for i := range p.next.Targets {
		t := &p.next.Targets[i]
		was := findTarget(p.old, t.IQN)
		if was == nil || p.mapping.isLeaving(t.IQN) {
			was = nil
			steps = append(steps, p.addTarget(t))
		} else {
			steps = append(steps, p.access(was, t)...)
		}
		steps = append(steps, p.luns(was, t)...)
	}
	return steps
}

func lunName(iqn string, lun int) string { return fmt.Sprintf("%s LUN %d", iqn, lun) }

func (p targetPlan) removeTarget(was *config.Target) step {
	return p.removeNode(was.IQN, func(ctx context.Context) error { return p.srv.RemoveTarget(ctx, was.IQN) }, func(c *config.Config) {
		c.Targets = append(deleteTarget(c.Targets, was.IQN), *was)
	})
}

func deleteTarget(ts []config.Target, iqn string) []config.Target {
	return slices.DeleteFunc(ts, func(t config.Target) bool { return t.IQN == iqn })
}

func (p targetPlan) addTarget(t *config.Target) step {
	return step{
		Change: Change{Action: "add", Object: t.IQN, Error: p.unlistened(t)},
		node:   t.IQN,
		do: func(context.Context) error {
			tt, err := targetConfig(p.next, t)
			if err != nil {
				return err
			}
			return p.srv.AddTarget(tt)
		},
		keep: func(c *config.Config) {
			if !p.mapping.isLeaving(t.IQN) { // otherwise the step that removes it keeps the configuration
				c.Targets = deleteTarget(c.Targets, t.IQN)
			}
		},
	}
}

// unlistened says why a target cannot be offered, "" if it can: the portals are those
// of the start.
func (p targetPlan) unlistened(t *config.Target) string {
	for _, q := range p.next.Portals {
		if slices.Contains(t.Portals, q.Listen) && !slices.ContainsFunc(p.old.Portals, func(o config.Portal) bool { return o.Listen == q.Listen }) {
			return fmt.Sprintf("portal %s is not there yet; a new portal %s", q.Listen, atStart)
		}
	}
	return ""
}

// access compares who may log in, and what a target is called.
func (p targetPlan) access(was, t *config.Target) (steps []step) {
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
			tt, err := targetConfig(p.next, t)
			if err != nil {
				return err
			}
			return p.srv.UpdateTarget(tt)
		},
		keep: func(c *config.Config) {
			x := findTarget(c, t.IQN)
			x.Alias, x.Redirect, x.ACL, x.Auth = was.Alias, was.Redirect, was.ACL, was.Auth
		},
	})
}

// removedLUNs finds LUNs that only the old configuration has. Those that were
// added while the target ran are in neither, and stay.
func (p targetPlan) removedLUNs(was, now *config.Target) (steps []step) {
	for _, l := range was.LUNs {
		at := place{was.IQN, uint32(l.LUN)}
		if name, _ := p.mapping.served(at); findLUN(now, l.LUN) == nil && (name != "" || p.mapping.comes(at) != nil) {
			steps = append(steps, step{
				Change: Change{Action: "remove", Object: lunName(was.IQN, l.LUN)},
				frees:  []place{at},
				take: func(ctx context.Context) error {
					return p.mapping.dismiss(ctx, at, func(ctx context.Context) error { return p.mapping.removeLUN(ctx, was.IQN, uint16(l.LUN)) })
				},
				keep: func(c *config.Config) { keepLUN(c, was.IQN, l) },
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

// luns finds LUNs to be added, which includes those whose volume could not be
// opened earlier, and those that are to be another volume.
func (p targetPlan) luns(was, t *config.Target) (steps []step) {
	for _, l := range t.LUNs {
		v, _ := findVolume(p.next, l.Volume)
		object := lunName(t.IQN, l.LUN) + " = " + l.Volume
		at := place{t.IQN, uint32(l.LUN)}
		add := func(ctx context.Context) error {
			return p.mapping.bring(ctx, at, l, func(c *coming) error { return p.mapping.addLUN(ctx, c, p.next, t.IQN, l, v) })
		}
		before := findLUN(was, l.LUN)
		keep := func(c *config.Config) {
			if before != nil {
				keepLUN(c, t.IQN, *before)
			}
		}
		is := p.mapping.lun(at) // which an administrator may have made, whatever the old configuration says
		switch name, leaving := p.mapping.served(at); {
		case name == "" || p.mapping.isLeaving(t.IQN):
			steps = append(steps, step{Change: Change{Action: "add", Object: object, Error: p.outOfGroup(l)}, do: add, node: t.IQN, serves: &v, at: at, volume: v.Name})
		case leaving || name != l.Volume || is.ReadOnly != l.ReadOnly:
			steps = append(steps, step{
				Change: Change{Action: "replace", Object: object, Error: p.outOfGroup(l)},
				frees:  []place{at},
				take:   func(ctx context.Context) error { return p.mapping.removeLUN(ctx, t.IQN, uint16(l.LUN)) },
				do:     add, keep: keep, node: t.IQN, serves: &v, at: at, volume: v.Name,
			})
		case is.ALUA != l.ALUA || !slices.Equal(is.ALUAGroups, l.ALUAGroups):
			steps = append(steps, step{
				Change: Change{Action: "update", Object: object + " alua", Error: p.outOfGroup(l)},
				do:     func(context.Context) error { return p.setAccess(t.IQN, v, l) }, keep: keep,
			})
		}
	}
	return steps
}

// outOfGroup says why the access states of a LUN cannot be had, "" if they can: the
// portals are those of the start.
func (p targetPlan) outOfGroup(l config.LUN) string {
	for _, g := range l.ALUAGroups {
		if why := p.noGroup(g.Group); why != "" {
			return why
		}
	}
	return ""
}

// setAccess puts the access states of a LUN through every portal group that its target is
// reached by as the configuration says.
func (p targetPlan) setAccess(iqn string, v config.Volume, l config.LUN) error {
	if p.groups.of(v.Name) != nil {
		return errMoves
	}
	lc, err := lunConfig(p.old, v, l)
	if err != nil {
		return err
	}
	var errs []error
	for _, g := range offered(p.old, findTarget(p.old, iqn)) {
		state, ok := lc.Access[uint16(g)]
		if !ok {
			state = lc.Access[0] // without any, the zero value: active/optimized
		}
		errs = append(errs, p.srv.SetAccessState(iqn, uint16(l.LUN), uint16(g), state))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	p.mapping.madeLUN(iqn, l)
	return nil
}
