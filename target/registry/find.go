package registry

import (
	"slices"

	"softiser/config"
)

// Parts of a configuration by name. What is not there is nil, but for volumes.

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

func findSubsystem(c *config.Config, nqn string) *config.Subsystem {
	if i := slices.IndexFunc(c.Subsystems, func(s config.Subsystem) bool { return s.NQN == nqn }); i >= 0 {
		return &c.Subsystems[i]
	}
	return nil
}

func findNamespace(s *config.Subsystem, nsid int) *config.Namespace {
	if s == nil {
		return nil
	}
	if i := slices.IndexFunc(s.Namespaces, func(n config.Namespace) bool { return n.NSID == nsid }); i >= 0 {
		return &s.Namespaces[i]
	}
	return nil
}

func findVolume(c *config.Config, name string) (config.Volume, bool) {
	if i := slices.IndexFunc(c.Volumes, func(v config.Volume) bool { return v.Name == name }); i >= 0 {
		return c.Volumes[i], true
	}
	return config.Volume{}, false
}

// volumeAt returns the name of the volume that a configuration serves at p, "" if it serves none.
func volumeAt(c *config.Config, p place) string {
	if l := findLUN(findTarget(c, p.node), int(p.id)); l != nil {
		return l.Volume
	}
	if n := findNamespace(findSubsystem(c, p.node), int(p.id)); n != nil {
		return n.Volume
	}
	return ""
}
