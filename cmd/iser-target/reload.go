package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"go.uber.org/zap"

	"softiser/config"
	"softiser/target/admin"
)

// A reload reads the configuration file again and makes what is served agree
// with it: targets and LUNs come and go, volumes grow, rates, limits, access rules
// and the log level change. What both configurations have is left alone, sessions included.
// What cannot change in a running process is named and stays as it was, and a
// file with a mistake in it changes nothing.

// step is a change with the way to make it. Steps take away what goes before any
// of them brings what comes, which may want the same volumes.
type step struct {
	admin.Change                             // Error, when set from the start, says why it cannot be made here
	take         func(context.Context) error // away; nil: nothing goes
	do           func(context.Context) error // nil: nothing comes
	frees        []mapping                   // LUNs that take takes away
	iqn          string                      // of the target that do adds, or adds a LUN to
	serves       *config.Volume              // what do makes a LUN of
	// keep puts back into c, the configuration that is to be recorded, what has not
	// been changed, so that the next reload tries again; nil: it sees by itself.
	keep func(c *config.Config)
}

// errNoFile is the answer to a reload without --config.
var errNoFile = errors.New("this target was started without --config, so there is no file to read again; lun, resize and session change it")

// errEmpty protects everything that is served from a file that was read while it
// was being written, or emptied by mistake.
var errEmpty = errors.New("the file names no target; to serve nothing, stop iser-target")

// atStart is why most settings of the process are not changed.
const atStart = "takes effect when iser-target is started again"

// reload applies the file, or with dry only tells what would be done.
func (a *app) reload(ctx context.Context, dry bool) ([]admin.Change, error) {
	a.reloading.Lock()
	defer a.reloading.Unlock()
	if a.load == nil {
		return nil, errNoFile
	}
	next, err := a.load()
	if err == nil && len(next.Targets)+len(next.Subsystems) == 0 {
		err = errEmpty
	}
	if err == nil {
		err = checkObjects(next)
	}
	if err != nil {
		return nil, fmt.Errorf("nothing is changed, because the file has mistakes:\n%w", err)
	}
	steps := a.plan(next)
	if dry {
		a.foresee(steps)
	} else {
		for _, w := range next.Warnings() {
			a.log.Warn(w)
		}
		a.run(ctx, steps, a.running(next))
	}
	changes := []admin.Change{}
	for _, s := range steps {
		changes = append(changes, s.Change)
	}
	return changes, nil
}

// run makes the changes and records what holds afterwards: now, except for what has
// failed.
func (a *app) run(ctx context.Context, steps []step, now *config.Config) {
	call := func(s *step, f func(context.Context) error) {
		if f == nil || s.Error != "" {
			return
		}
		if err := f(ctx); err != nil {
			s.Error = err.Error()
		}
	}
	a.mu.Lock()
	a.wanted = wantedVolumes(now)
	a.adopt(now)
	a.mu.Unlock()
	for i := range steps {
		call(&steps[i], steps[i].take)
	}
	for i := range steps {
		call(&steps[i], steps[i].do)
		a.logChange(steps[i].Change)
	}
	for i := range steps {
		if s := &steps[i]; s.Error != "" && s.keep != nil {
			s.keep(now)
		}
	}
	a.changing.Lock()
	defer a.changing.Unlock()
	a.mu.Lock()
	a.cfg, a.wanted = now, nil
	volumes := maps.Clone(a.volumes)
	a.mu.Unlock()
	for name, o := range volumes {
		if err := a.drop(o); err != nil {
			a.log.Error("closing a volume failed", zap.String("volume", name), zap.Error(err))
		}
	}
}

// adopt makes the description of open volumes that of c, where they differ in what a
// reload changes on line: they are the same volumes. The caller holds a.mu.
func (a *app) adopt(c *config.Config) {
	for _, v := range c.Volumes {
		if o := a.volumes[v.Name]; o != nil && len(withoutTunables(differing(o.cfg, v))) == 0 {
			o.cfg = v
		}
	}
}

// wantedVolumes returns the volumes that LUNs of c are made of.
func wantedVolumes(c *config.Config) map[string]config.Volume {
	m := map[string]config.Volume{}
	for _, t := range c.Targets {
		for _, l := range t.LUNs {
			if v, ok := findVolume(c, l.Volume); ok {
				m[v.Name] = v
			}
		}
	}
	return m
}

func (a *app) logChange(c admin.Change) {
	f := []zap.Field{zap.String("action", c.Action), zap.String("object", c.Object)}
	if c.Error != "" {
		a.log.Warn("reload: not done", append(f, zap.String("reason", c.Error))...)
		return
	}
	a.log.Info("reload", f...)
}

// running is a copy of next with the settings that stay as they are until the next
// start.
func (a *app) running(next *config.Config) *config.Config {
	c := *next
	c.Targets = slices.Clone(next.Targets)
	for i := range c.Targets {
		c.Targets[i].LUNs = slices.Clone(c.Targets[i].LUNs)
	}
	c.Portals, c.Discovery, c.ISCSI, c.Subsystems = a.cfg.Portals, a.cfg.Discovery, a.cfg.ISCSI, a.cfg.Subsystems
	c.Transport, c.Limits.StagingMemory, c.Admin = a.cfg.Transport, a.cfg.Limits.StagingMemory, a.cfg.Admin
	c.Logging.Format = a.cfg.Logging.Format
	return &c
}

// plan compares what is served with next. What goes comes first: its files may
// be wanted by what comes.
func (a *app) plan(next *config.Config) []step {
	a.mu.Lock()
	defer a.mu.Unlock()
	old := a.cfg
	var steps []step
	for i := range old.Targets {
		t := &old.Targets[i]
		if n := findTarget(next, t.IQN); n == nil || a.leaving[t.IQN] {
			steps = append(steps, a.removeTarget(t))
		} else {
			steps = append(steps, a.planRemovedLUNs(t, n)...)
		}
	}
	steps = append(steps, a.planVolumes(next)...)
	for i := range next.Targets {
		t := &next.Targets[i]
		was := findTarget(old, t.IQN)
		if was == nil || a.leaving[t.IQN] {
			was = nil
			steps = append(steps, a.addTarget(next, t))
		} else {
			steps = append(steps, a.planAccess(next, was, t)...)
		}
		steps = append(steps, a.planLUNs(next, was, t)...)
	}
	return append(steps, a.planSettings(next)...)
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

// served returns the name of the volume that is a LUN now, or "", and whether the
// LUN is one whose removal has begun but not ended. The caller holds a.mu.
func (a *app) served(iqn string, lun int) (name string, leaving bool) {
	m := mapping{iqn, uint16(lun)}
	for name, o := range a.volumes {
		if slices.Contains(o.luns, m) {
			return name, a.leavingLUNs[m]
		}
	}
	return "", false
}

func lunName(iqn string, lun int) string { return fmt.Sprintf("%s LUN %d", iqn, lun) }

func (a *app) removeTarget(was *config.Target) step {
	var frees []mapping
	for _, o := range a.volumes {
		for _, m := range o.luns {
			if m.iqn == was.IQN {
				frees = append(frees, m)
			}
		}
	}
	return step{
		Change: admin.Change{Action: "remove", Object: was.IQN},
		frees:  frees,
		take: func(ctx context.Context) error {
			err := a.srv.RemoveTarget(ctx, was.IQN)
			if unfinished(err) {
				a.mu.Lock()
				a.leaving[was.IQN] = true
				a.mu.Unlock()
				return err
			}
			return errors.Join(err, a.unmapTarget(was.IQN))
		},
		keep: func(c *config.Config) {
			a.mu.Lock()
			defer a.mu.Unlock()
			if a.leaving[was.IQN] {
				c.Targets = append(deleteTarget(c.Targets, was.IQN), *was)
			}
		},
	}
}

func deleteTarget(ts []config.Target, iqn string) []config.Target {
	return slices.DeleteFunc(ts, func(t config.Target) bool { return t.IQN == iqn })
}

// unfinished reports whether a removal has begun, but commands still hold volumes:
// it can be asked for again.
func unfinished(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}

// unmapTarget forgets the LUNs of a target that has been removed.
func (a *app) unmapTarget(iqn string) error {
	a.mu.Lock()
	delete(a.leaving, iqn)
	a.mu.Unlock()
	return a.unmap(func(m mapping) bool { return m.iqn == iqn })
}

func (a *app) addTarget(next *config.Config, t *config.Target) step {
	return step{
		Change: admin.Change{Action: "add", Object: t.IQN, Error: a.unlistened(next, t)},
		iqn:    t.IQN,
		do: func(context.Context) error {
			tt, err := targetConfig(next, t)
			if err != nil {
				return err
			}
			return a.srv.AddTarget(tt)
		},
		keep: func(c *config.Config) {
			a.mu.Lock()
			defer a.mu.Unlock()
			if !a.leaving[t.IQN] { // else the step that removes it knows
				c.Targets = deleteTarget(c.Targets, t.IQN)
			}
		},
	}
}

// unlistened says why a target cannot be offered, "" if it can: the portals are those
// of the start.
func (a *app) unlistened(next *config.Config, t *config.Target) string {
	for _, p := range next.Portals {
		if slices.Contains(t.Portals, p.Listen) && !slices.ContainsFunc(a.cfg.Portals, func(r config.Portal) bool { return r.Group == p.Group }) {
			return fmt.Sprintf("portal %s is not there yet; a new portal %s", p.Listen, atStart)
		}
	}
	return ""
}

// planAccess compares who may log in, and what a target is called.
func (a *app) planAccess(next *config.Config, was, t *config.Target) (steps []step) {
	if !slices.Equal(was.Portals, t.Portals) {
		steps = append(steps, step{
			Change: admin.Change{Action: "update", Object: t.IQN + " portals", Error: atStart},
			keep:   func(c *config.Config) { findTarget(c, t.IQN).Portals = was.Portals },
		})
	}
	if (was.ALUAMode == "explicit") != (t.ALUAMode == "explicit") {
		steps = append(steps, step{
			Change: admin.Change{Action: "update", Object: t.IQN + " alua_mode", Error: atStart},
			keep:   func(c *config.Config) { findTarget(c, t.IQN).ALUAMode = was.ALUAMode },
		})
	}
	if was.Alias == t.Alias && was.Redirect == t.Redirect && reflect.DeepEqual(was.ACL, t.ACL) && reflect.DeepEqual(was.Auth, t.Auth) {
		return steps
	}
	return append(steps, step{
		Change: admin.Change{Action: "update", Object: t.IQN + " auth, acl, alias, redirect"},
		do: func(context.Context) error {
			tt, err := targetConfig(next, t)
			if err != nil {
				return err
			}
			return a.srv.UpdateTarget(tt)
		},
		keep: func(c *config.Config) {
			x := findTarget(c, t.IQN)
			x.Alias, x.Redirect, x.ACL, x.Auth = was.Alias, was.Redirect, was.ACL, was.Auth
		},
	})
}

// planRemovedLUNs finds LUNs that only the old configuration has. Those that were
// added while the target ran are in neither, and stay.
func (a *app) planRemovedLUNs(was, now *config.Target) (steps []step) {
	for _, l := range was.LUNs {
		if name, _ := a.served(was.IQN, l.LUN); findLUN(now, l.LUN) == nil && name != "" {
			steps = append(steps, step{
				Change: admin.Change{Action: "remove", Object: lunName(was.IQN, l.LUN)},
				frees:  []mapping{{was.IQN, uint16(l.LUN)}},
				take:   func(ctx context.Context) error { return a.removeLUN(ctx, was.IQN, uint16(l.LUN)) },
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
func (a *app) planLUNs(next *config.Config, was, t *config.Target) (steps []step) {
	for _, l := range t.LUNs {
		v, _ := findVolume(next, l.Volume)
		object := lunName(t.IQN, l.LUN) + " = " + l.Volume
		add := func(context.Context) error { return a.mapVolume(t.IQN, l, v) }
		before := findLUN(was, l.LUN)
		keep := func(c *config.Config) {
			if before != nil {
				keepLUN(c, t.IQN, *before)
			}
		}
		switch name, leaving := a.served(t.IQN, l.LUN); {
		case name == "" || a.leaving[t.IQN]:
			steps = append(steps, step{Change: admin.Change{Action: "add", Object: object, Error: a.outOfGroup(l)}, do: add, iqn: t.IQN, serves: &v})
		case leaving || name != l.Volume || before != nil && before.ReadOnly != l.ReadOnly:
			steps = append(steps, step{
				Change: admin.Change{Action: "replace", Object: object, Error: a.outOfGroup(l)},
				frees:  []mapping{{t.IQN, uint16(l.LUN)}},
				take:   func(ctx context.Context) error { return a.removeLUN(ctx, t.IQN, uint16(l.LUN)) },
				do:     add, keep: keep, iqn: t.IQN, serves: &v,
			})
		case before != nil && (before.ALUA != l.ALUA || !slices.Equal(before.ALUAGroups, l.ALUAGroups)):
			steps = append(steps, step{
				Change: admin.Change{Action: "update", Object: object + " alua", Error: a.outOfGroup(l)},
				do:     func(context.Context) error { return a.setAccess(t.IQN, v, l) }, keep: keep,
			})
		}
	}
	return steps
}

// outOfGroup says why the access states of a LUN cannot be had, "" if they can: the
// portals are those of the start.
func (a *app) outOfGroup(l config.LUN) string {
	for _, g := range l.ALUAGroups {
		if !slices.ContainsFunc(a.cfg.Portals, func(p config.Portal) bool { return p.Group == g.Group }) {
			return fmt.Sprintf("no portal of the running target belongs to group %d; a new portal %s", g.Group, atStart)
		}
	}
	return ""
}

// setAccess puts the access states of a LUN through every portal group as the
// configuration says.
func (a *app) setAccess(iqn string, v config.Volume, l config.LUN) error {
	lc, err := lunConfig(a.cfg, v, l)
	if err != nil {
		return err
	}
	var errs []error
	done := map[uint16]bool{}
	for _, p := range a.cfg.Portals {
		g := uint16(p.Group)
		if done[g] {
			continue
		}
		done[g] = true
		state, ok := lc.Access[g]
		if !ok {
			state = lc.Access[0] // without any, the zero value: active/optimized
		}
		errs = append(errs, a.srv.SetAccessState(iqn, uint16(l.LUN), g, state))
	}
	return errors.Join(errs...)
}
