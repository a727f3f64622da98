package registry

import (
	"context"
	"reflect"
	"slices"

	"softiser/config"
)

// What a reload does about settings of the process.

// settingsPlan plans what concerns the process rather than a target.
type settingsPlan struct {
	*planning
	setLevel func(string) error // changes what is logged
}

// steps compares the settings.
func (p settingsPlan) steps() (steps []step) {
	old, now := p.old, p.next
	fixed := func(key string) {
		steps = append(steps, step{Change: Change{Action: "update", Object: key, Error: atStart}})
	}
	if !reflect.DeepEqual(withoutTLS(old.Portals), withoutTLS(now.Portals)) {
		fixed("portals")
	}
	for _, was := range old.Portals {
		i := slices.IndexFunc(now.Portals, func(n config.Portal) bool { return n.Listen == was.Listen })
		if i < 0 || was.TLS.Same(now.Portals[i].TLS) {
			continue
		}
		t := now.Portals[i].TLS
		steps = append(steps, step{
			Change: Change{Action: "update", Object: "TLS of portal " + was.Listen},
			do:     func(context.Context) error { return p.srv.SetCertificates(was.Listen, certificates(t)) },
		})
	}
	if l := now.Discovery.Referrals; !reflect.DeepEqual(old.Discovery.Referrals, l) {
		steps = append(steps, step{
			Change: Change{Action: "update", Object: "discovery.referrals"},
			do:     func(context.Context) error { return p.srv.SetReferrals(referrals(l)) },
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
			do:     func(context.Context) error { p.setLimits(n); return nil },
		})
	}
	if old.Logging.Format != now.Logging.Format {
		fixed("logging.format")
	}
	if level := now.Logging.Level; level != old.Logging.Level {
		steps = append(steps, step{
			Change: Change{Action: "update", Object: "logging.level to " + level},
			do:     func(context.Context) error { return p.setLevel(level) },
			keep:   func(c *config.Config) { c.Logging.Level = old.Logging.Level },
		})
	}
	return steps
}

// withoutTLS are portals without what can change while they listen.
func withoutTLS(l []config.Portal) []config.Portal {
	l = slices.Clone(l)
	for i := range l {
		l[i].TLS = nil
	}
	return l
}

// setLimits puts new limits in force. Sessions and commands that are there stay.
func (p settingsPlan) setLimits(l config.Limits) {
	p.srv.SetLimits(serverLimits(&l))
	for _, o := range p.volumes.all() {
		if v := p.srv.Volume(o.dev); v != nil {
			v.SetWorkers(l.Workers)
		}
	}
}
