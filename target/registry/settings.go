package registry

import (
	"context"
	"reflect"
	"slices"

	"softiser/config"
)

// What a reload does about settings of the process.

// planSettings finds what concerns the process rather than a target.
func (r *Registry) planSettings(next *config.Config) (steps []step) {
	old, now := r.cfg, next
	fixed := func(key string) {
		steps = append(steps, step{Change: Change{Action: "update", Object: key, Error: atStart}})
	}
	if !reflect.DeepEqual(old.Portals, now.Portals) {
		fixed("portals")
	}
	if l := now.Discovery.Referrals; !reflect.DeepEqual(old.Discovery.Referrals, l) {
		steps = append(steps, step{
			Change: Change{Action: "update", Object: "discovery.referrals"},
			do:     func(context.Context) error { return r.srv.SetReferrals(referrals(l)) },
			keep:   func(c *config.Config) { c.Discovery.Referrals = old.Discovery.Referrals },
		})
	}
	for _, s := range []struct {
		name     string
		old, now any
	}{
		{"discovery", old.Discovery, now.Discovery}, {"iscsi", old.ISCSI, now.ISCSI}, {"transport", old.Transport, now.Transport},
		{"admin", old.Admin, now.Admin}, {"ha", old.HA, now.HA},
	} {
		for _, key := range differing(s.old, s.now) {
			if key != "referrals" {
				fixed(s.name + "." + key)
			}
		}
	}
	if old.Limits.StagingMemory != now.Limits.StagingMemory {
		fixed("limits.staging_memory")
	}
	if n := now.Limits; slices.ContainsFunc(differing(old.Limits, n), func(key string) bool { return key != "staging_memory" }) {
		steps = append(steps, step{
			Change: Change{Action: "update", Object: "limits"},
			do:     func(context.Context) error { r.setLimits(n); return nil },
		})
	}
	if old.Logging.Format != now.Logging.Format {
		fixed("logging.format")
	}
	if level := now.Logging.Level; level != old.Logging.Level {
		steps = append(steps, step{
			Change: Change{Action: "update", Object: "logging.level to " + level},
			do:     func(context.Context) error { return r.setLevel(level) },
			keep:   func(c *config.Config) { c.Logging.Level = old.Logging.Level },
		})
	}
	return steps
}

// setLimits puts new limits in force. Sessions and commands that are there stay.
func (r *Registry) setLimits(l config.Limits) {
	r.srv.SetLimits(serverLimits(&l))
	for _, o := range r.volumes.all() {
		if v := r.srv.Volume(o.dev); v != nil {
			v.SetWorkers(l.Workers)
		}
	}
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
