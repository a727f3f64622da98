package main

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"go.uber.org/zap"

	"softiser/config"
	"softiser/target/admin"
)

// A reload reads the configuration file again and makes what is served agree
// with it: targets and LUNs come and go, volumes grow, access rules and the log
// level change. What both configurations have is left alone, sessions included.
// What cannot change in a running process is named and stays as it was, and a
// file with a mistake in it changes nothing.

// step is a change with the way to make it.
type step struct {
	admin.Change
	do func(context.Context) error // nil: it cannot be made here; Error says why
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
	if err == nil && len(next.Targets) == 0 {
		err = errEmpty
	}
	if err == nil {
		err = checkObjects(next)
	}
	if err != nil {
		return nil, fmt.Errorf("nothing is changed, because the file has mistakes:\n%w", err)
	}
	changes := []admin.Change{}
	steps := a.plan(next)
	if !dry {
		a.mu.Lock()
		a.cfg = a.running(next)
		a.mu.Unlock()
	}
	for _, s := range steps {
		if s.do != nil && !dry {
			if err := s.do(ctx); err != nil {
				s.Error = err.Error()
			}
		}
		if !dry {
			a.logChange(s.Change)
		}
		changes = append(changes, s.Change)
	}
	return changes, nil
}

func (a *app) logChange(c admin.Change) {
	f := []zap.Field{zap.String("action", c.Action), zap.String("object", c.Object)}
	if c.Error != "" {
		a.log.Warn("reload: not done", append(f, zap.String("reason", c.Error))...)
		return
	}
	a.log.Info("reload", f...)
}

// running is next with the settings that stay as they are until the next start.
func (a *app) running(next *config.Config) *config.Config {
	c := *next
	c.Portals, c.Discovery, c.ISCSI = a.cfg.Portals, a.cfg.Discovery, a.cfg.ISCSI
	c.Transport, c.Limits, c.Admin = a.cfg.Transport, a.cfg.Limits, a.cfg.Admin
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
	for _, t := range old.Targets {
		if n := findTarget(next, t.IQN); n == nil {
			steps = append(steps, a.removeTarget(t.IQN))
		} else {
			steps = append(steps, a.planRemovedLUNs(&t, n)...)
		}
	}
	steps = append(steps, a.planVolumes(next)...)
	for i := range next.Targets {
		t := &next.Targets[i]
		was := findTarget(old, t.IQN)
		if was == nil {
			steps = append(steps, a.addTarget(next, t))
		} else if s, changed := a.planAccess(next, was, t); changed {
			steps = append(steps, s)
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

// served returns the name of the volume that is a LUN now, or "". The caller
// holds a.mu.
func (a *app) served(iqn string, lun int) string {
	for name, o := range a.volumes {
		if slices.Contains(o.luns, mapping{iqn, uint16(lun)}) {
			return name
		}
	}
	return ""
}

func lunName(iqn string, lun int) string { return fmt.Sprintf("%s LUN %d", iqn, lun) }

func (a *app) removeTarget(iqn string) step {
	return step{admin.Change{Action: "remove", Object: iqn}, func(ctx context.Context) error {
		if err := a.srv.RemoveTarget(ctx, iqn); err != nil {
			return err
		}
		return a.unmapTarget(iqn)
	}}
}

// unmapTarget forgets the LUNs of a target that has been removed.
func (a *app) unmapTarget(iqn string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	var errs []error
	for _, o := range a.volumes {
		n := len(o.luns)
		if o.luns = slices.DeleteFunc(o.luns, func(m mapping) bool { return m.iqn == iqn }); len(o.luns) < n {
			errs = append(errs, a.dropLocked(o))
		}
	}
	return errors.Join(errs...)
}

func (a *app) addTarget(next *config.Config, t *config.Target) step {
	return step{admin.Change{Action: "add", Object: t.IQN}, func(context.Context) error {
		tt, err := targetConfig(next, t)
		if err != nil {
			return err
		}
		return a.srv.AddTarget(tt)
	}}
}

// planAccess compares who may log in, and what a target is called.
func (a *app) planAccess(next *config.Config, was, t *config.Target) (step, bool) {
	if !slices.Equal(was.Portals, t.Portals) {
		return step{Change: admin.Change{Action: "update", Object: t.IQN + " portals", Error: atStart}}, true
	}
	if was.Alias == t.Alias && was.Redirect == t.Redirect && reflect.DeepEqual(was.ACL, t.ACL) && reflect.DeepEqual(was.Auth, t.Auth) {
		return step{}, false
	}
	return step{admin.Change{Action: "update", Object: t.IQN + " auth, acl, alias, redirect"}, func(context.Context) error {
		tt, err := targetConfig(next, t)
		if err != nil {
			return err
		}
		return a.srv.UpdateTarget(tt)
	}}, true
}

// planRemovedLUNs finds LUNs that only the old configuration has. Those that were
// added while the target ran are in neither, and stay.
func (a *app) planRemovedLUNs(was, now *config.Target) (steps []step) {
	for _, l := range was.LUNs {
		if findLUN(now, l.LUN) == nil && a.served(was.IQN, l.LUN) != "" {
			steps = append(steps, step{admin.Change{Action: "remove", Object: lunName(was.IQN, l.LUN)}, func(ctx context.Context) error {
				return a.removeLUN(ctx, was.IQN, uint16(l.LUN))
			}})
		}
	}
	return steps
}

// planLUNs finds LUNs to be added, which includes those whose volume could not be
// opened earlier, and those that are to be another volume.
func (a *app) planLUNs(next *config.Config, was, t *config.Target) (steps []step) {
	for _, l := range t.LUNs {
		v, _ := findVolume(next, l.Volume)
		object := lunName(t.IQN, l.LUN) + " = " + l.Volume
		add := func(context.Context) error { return a.mapVolume(t.IQN, l, v) }
		before := findLUN(was, l.LUN)
		switch name := a.served(t.IQN, l.LUN); {
		case name == "":
			steps = append(steps, step{admin.Change{Action: "add", Object: object}, add})
		case name != l.Volume || before != nil && before.ReadOnly != l.ReadOnly:
			steps = append(steps, step{admin.Change{Action: "replace", Object: object}, func(ctx context.Context) error {
				if err := a.removeLUN(ctx, t.IQN, uint16(l.LUN)); err != nil {
					return err
				}
				return add(ctx)
			}})
		case before != nil && (before.ALUA != l.ALUA || !slices.Equal(before.ALUAGroups, l.ALUAGroups)):
			steps = append(steps, step{admin.Change{Action: "update", Object: object + " alua"}, func(context.Context) error {
				return a.setAccess(t.IQN, v, l)
			}})
		}
	}
	return steps
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

// planVolumes finds open volumes that the new configuration describes otherwise.
func (a *app) planVolumes(next *config.Config) (steps []step) {
	for _, v := range next.Volumes {
		o := a.volumes[v.Name]
		if o == nil || reflect.DeepEqual(o.cfg, v) {
			continue
		}
		only := o.cfg
		if only.Size = v.Size; reflect.DeepEqual(only, v) && v.Size == 0 {
			continue // whatever size it has
		} else if !reflect.DeepEqual(only, v) {
			steps = append(steps, step{Change: admin.Change{Action: "update", Object: "volume " + v.Name, Error: fmt.Sprintf(
				"%s of an open volume cannot change; it %s, or its LUNs are removed and added again", strings.Join(differing(o.cfg, v), ", "), atStart)}})
			continue
		}
		steps = append(steps, step{admin.Change{Action: "resize", Object: fmt.Sprintf("volume %s to %s", v.Name, v.Size)},
			func(context.Context) error { return a.resizeVolume(v) }})
	}
	return steps
}

// resizeVolume grows an open volume. Shrinking loses data, so it takes the
// command that says so.
func (a *app) resizeVolume(v config.Volume) error {
	a.mu.Lock()
	o := a.volumes[v.Name]
	var m mapping
	var now int64
	if o != nil {
		m, now = o.luns[0], o.dev.Info().Size
	}
	a.mu.Unlock()
	switch {
	case o == nil:
		return nil
	case int64(v.Size) < now:
		return fmt.Errorf("the volume has %s; `iser-target resize --shrink %s %s` shrinks it", config.Size(now), v.Name, v.Size)
	}
	if err := a.srv.ResizeLUN(m.iqn, m.lun, int64(v.Size)); err != nil {
		return err
	}
	a.mu.Lock()
	o.cfg = v
	a.mu.Unlock()
	return nil
}

// planSettings finds what concerns the process rather than a target.
func (a *app) planSettings(next *config.Config) (steps []step) {
	old, now := a.cfg, next
	fixed := func(key string) {
		steps = append(steps, step{Change: admin.Change{Action: "update", Object: key, Error: atStart}})
	}
	if !reflect.DeepEqual(old.Portals, now.Portals) {
		fixed("portals")
	}
	if !reflect.DeepEqual(old.Discovery, now.Discovery) {
		fixed("discovery")
	}
	for _, s := range []struct {
		name     string
		old, now any
	}{
		{"iscsi", old.ISCSI, now.ISCSI}, {"transport", old.Transport, now.Transport},
		{"limits", old.Limits, now.Limits}, {"admin", old.Admin, now.Admin},
	} {
		for _, key := range differing(s.old, s.now) {
			fixed(s.name + "." + key)
		}
	}
	if old.Logging.Format != now.Logging.Format {
		fixed("logging.format")
	}
	if level := now.Logging.Level; level != old.Logging.Level {
		steps = append(steps, step{admin.Change{Action: "update", Object: "logging.level to " + level}, func(context.Context) error {
			return a.level.UnmarshalText([]byte(level))
		}})
	}
	return steps
}

// differing lists the keys of two structures of one type that are not equal.
func differing(a, b any) (keys []string) {
	x, y := reflect.ValueOf(a), reflect.ValueOf(b)
	for i := range x.NumField() {
		if !reflect.DeepEqual(x.Field(i).Interface(), y.Field(i).Interface()) {
			keys = append(keys, x.Type().Field(i).Tag.Get("mapstructure"))
		}
	}
	return keys
}
