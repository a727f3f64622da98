package registry

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"go.uber.org/zap"

	"softiser/blockdev"
	"softiser/config"
	"softiser/target/nvmf"
	"softiser/target/volume"
)

// What is done to NVMe subsystems and their namespaces, at the start and by a reload.

// addSubsystems serves the subsystems, still without namespaces.
func (r *Registry) addSubsystems() error {
	for i := range r.cfg.Subsystems {
		if err := r.srv.AddSubsystem(subsystemConfig(&r.cfg.Subsystems[i])); err != nil {
			return err
		}
	}
	return nil
}

// serveNamespaces makes volumes namespaces, opened if LUNs have not done so already. One
// that cannot be opened is logged and left out. It returns how many the configuration has,
// and how many are served.
func (r *Registry) serveNamespaces() (configured, served int) {
	for _, s := range r.cfg.Subsystems {
		for _, n := range s.Namespaces {
			configured++
			v, _ := findVolume(r.cfg, n.Volume)
			if err := r.mapNamespace(context.Background(), s.NQN, n, v); err != nil {
				r.log.Error("a namespace is not served; the others are", zap.String("subsystem", s.NQN), zap.Int("nsid", n.NSID),
					zap.String("volume", n.Volume), zap.Error(err))
				continue
			}
			served++
		}
	}
	return configured, served
}

// mapNamespace is mapVolume for a namespace.
func (r *Registry) mapNamespace(ctx context.Context, nqn string, n config.Namespace, v config.Volume) error {
	nc, err := namespaceConfig(r.config(), v, n)
	if g := r.groupOf(v.Name); g != nil {
		nc.Store, nc.Access = g.store, map[uint16]volume.PathState{0: volume.PathInaccessible}
	}
	return r.mapAt(ctx, place{nqn, uint32(n.NSID)}, v, err, func(dev blockdev.Device) error {
		nc.Volume = dev
		return r.srv.AddNamespace(nqn, nc)
	})
}

// AddNamespace makes a volume a namespace of a subsystem, as long as the target runs.
func (r *Registry) AddNamespace(ctx context.Context, nqn string, nsid uint32, v config.Volume) error {
	return r.mapNamespace(ctx, nqn, config.Namespace{NSID: int(nsid), Volume: v.Name}, v)
}

// RemoveNamespace takes a namespace away, and closes its volume if it was the last place.
// If ctx ends first, commands still hold the volume, and RemoveNamespace may be called again.
func (r *Registry) RemoveNamespace(ctx context.Context, nqn string, nsid uint32) error {
	return r.remove(ctx, place{nqn, nsid}, func(ctx context.Context) error { return r.srv.RemoveNamespace(ctx, nqn, nsid) })
}

// planSubsystems compares subsystems. What goes is for the first phase, what comes for the
// second; the caller holds r.mu.
func (r *Registry) planSubsystems(next *config.Config) (goes, comes []step) {
	for i := range r.cfg.Subsystems {
		s := &r.cfg.Subsystems[i]
		if n := findSubsystem(next, s.NQN); n == nil || r.leaving[s.NQN] {
			goes = append(goes, r.removeSubsystem(s))
		} else {
			goes = append(goes, r.planRemovedNamespaces(s, n)...)
		}
	}
	for i := range next.Subsystems {
		s := &next.Subsystems[i]
		was := findSubsystem(r.cfg, s.NQN)
		if was == nil || r.leaving[s.NQN] {
			was = nil
			comes = append(comes, r.addSubsystem(s))
		} else {
			comes = append(comes, r.planHosts(was, s)...)
		}
		comes = append(comes, r.planNamespaces(next, was, s)...)
	}
	return goes, comes
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

func deleteSubsystem(l []config.Subsystem, nqn string) []config.Subsystem {
	return slices.DeleteFunc(l, func(s config.Subsystem) bool { return s.NQN == nqn })
}

func namespaceName(nqn string, nsid int) string { return fmt.Sprintf("%s namespace %d", nqn, nsid) }

func (r *Registry) removeSubsystem(was *config.Subsystem) step {
	return r.removeNode(was.NQN, func(ctx context.Context) error { return r.srv.RemoveSubsystem(ctx, was.NQN) }, func(c *config.Config) {
		c.Subsystems = append(deleteSubsystem(c.Subsystems, was.NQN), *was)
	})
}

func (r *Registry) addSubsystem(s *config.Subsystem) step {
	return step{
		Change: Change{Action: "add", Object: s.NQN},
		node:   s.NQN,
		do:     func(context.Context) error { return r.srv.AddSubsystem(subsystemConfig(s)) },
		keep: func(c *config.Config) {
			if !r.isLeaving(s.NQN) { // else the step that removes it knows
				c.Subsystems = deleteSubsystem(c.Subsystems, s.NQN)
			}
		},
	}
}

// planHosts compares who may connect, and how a subsystem presents itself.
func (r *Registry) planHosts(was, s *config.Subsystem) (steps []step) {
	access := false
	for _, key := range differing(*was, *s) {
		switch key {
		case "namespaces":
		case "hosts", "keys", "networks", "secure_channel":
			access = true
		case "remote":
			steps = append(steps, step{
				Change: Change{Action: "update", Object: s.NQN + " remote"},
				do:     func(context.Context) error { return r.srv.SetRemote(s.NQN, remotes(s.Remote)) },
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
			return r.srv.SetHosts(s.NQN, c.Hosts, c.SecureChannel)
		},
		keep: func(c *config.Config) {
			x := findSubsystem(c, s.NQN)
			x.Hosts, x.Keys, x.Networks, x.SecureChannel = was.Hosts, was.Keys, was.Networks, was.SecureChannel
		},
	})
}

// planRemovedNamespaces finds namespaces that only the old configuration has. Those that
// were added while the target ran are in neither, and stay.
func (r *Registry) planRemovedNamespaces(was, now *config.Subsystem) (steps []step) {
	for _, n := range was.Namespaces {
		p := place{was.NQN, uint32(n.NSID)}
		if name, _ := r.served(p); findNamespace(now, n.NSID) == nil && name != "" {
			steps = append(steps, step{
				Change: Change{Action: "remove", Object: namespaceName(was.NQN, n.NSID)},
				frees:  []place{p},
				take:   func(ctx context.Context) error { return r.RemoveNamespace(ctx, p.node, p.id) },
				keep:   func(c *config.Config) { keepNamespace(c, was.NQN, n) },
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

// planNamespaces finds namespaces to be added, which includes those whose volume could not
// be opened earlier, and those that are to be another volume.
func (r *Registry) planNamespaces(next *config.Config, was, s *config.Subsystem) (steps []step) {
	for _, n := range s.Namespaces {
		v, _ := findVolume(next, n.Volume)
		p := place{s.NQN, uint32(n.NSID)}
		x := step{
			Change: Change{Action: "add", Object: namespaceName(s.NQN, n.NSID) + " = " + n.Volume, Error: r.spaceOutOfGroup(n)},
			do:     func(ctx context.Context) error { return r.mapNamespace(ctx, s.NQN, n, v) },
			node:   s.NQN, serves: &v, volume: v.Name,
		}
		before := findNamespace(was, n.NSID)
		switch name, leaving := r.served(p); {
		case name == "" || r.leaving[s.NQN]:
			steps = append(steps, x)
		case leaving || name != n.Volume || before != nil && before.ReadOnly != n.ReadOnly:
			x.Action, x.frees = "replace", []place{p}
			x.take = func(ctx context.Context) error { return r.RemoveNamespace(ctx, p.node, p.id) }
			x.keep = func(c *config.Config) {
				if before != nil {
					keepNamespace(c, s.NQN, *before)
				}
			}
			steps = append(steps, x)
		case before != nil && (before.ANA != n.ANA || !slices.Equal(before.ANAGroups, n.ANAGroups)):
			steps = append(steps, step{
				Change: Change{Action: "update", Object: x.Object + " ana", Error: x.Error},
				do:     func(context.Context) error { return r.setNamespaceAccess(next, s.NQN, n) },
				keep:   func(c *config.Config) { keepNamespace(c, s.NQN, *before) },
			})
		}
	}
	return steps
}

// spaceOutOfGroup is outOfGroup for a namespace.
func (r *Registry) spaceOutOfGroup(n config.Namespace) string {
	for _, g := range n.ANAGroups {
		if why := r.noGroup(g.Group); why != "" {
			return why
		}
	}
	return ""
}

// setNamespaceAccess puts the access states of a namespace as the configuration says. One that
// says none any more follows the LUNs of its volume that do, or is reached through every group.
func (r *Registry) setNamespaceAccess(c *config.Config, nqn string, n config.Namespace) error {
	if r.groupOf(n.Volume) != nil {
		return errMoves
	}
	access, err := spaceAccess(n)
	if err != nil {
		return err
	}
	if access == nil && lunsNameAccess(c, n.Volume) {
		return nil
	}
	var errs []error
	for _, p := range r.cfg.Portals {
		g := uint16(p.Group)
		state, ok := access[g]
		if !ok {
			state = access[0]
		}
		errs = append(errs, r.srv.SetNamespaceAccess(nqn, uint32(n.NSID), g, state))
	}
	return errors.Join(errs...)
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

// spaceAccess translates the access states of a namespace, by portal group; nil: it has none
// of its own.
func spaceAccess(n config.Namespace) (map[uint16]volume.PathState, error) {
	if !n.NamesAccess() {
		return nil, nil
	}
	m := map[uint16]volume.PathState{}
	groups := []int{0}
	for _, g := range n.ANAGroups {
		groups = append(groups, g.Group)
	}
	for _, g := range groups {
		var s volume.PathState
		if err := s.UnmarshalText([]byte(n.Access(g))); err != nil {
			return nil, fmt.Errorf("namespace %d: %w", n.NSID, err)
		}
		m[uint16(g)] = s
	}
	return m, nil
}

// removeNode is the step that takes a target or a subsystem away with all its places;
// restore puts it back into a configuration when that is not over.
func (r *Registry) removeNode(name string, remove func(context.Context) error, restore func(*config.Config)) step {
	var frees []place
	for _, o := range r.volumes.all() {
		for _, p := range r.volumes.placesOf(o) {
			if p.node == name {
				frees = append(frees, p)
			}
		}
	}
	return step{
		Change: Change{Action: "remove", Object: name},
		frees:  frees,
		take: func(ctx context.Context) error {
			err := remove(ctx)
			if unfinished(err) {
				r.mu.Lock()
				r.leaving[name] = true
				r.mu.Unlock()
				return err
			}
			return errors.Join(err, r.unmapNode(ctx, name))
		},
		keep: func(c *config.Config) {
			if r.isLeaving(name) {
				restore(c)
			}
		},
	}
}

// isLeaving reports whether the removal of a target or subsystem has begun and is not over.
func (r *Registry) isLeaving(node string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.leaving[node]
}

var secureChannels = map[string]nvmf.SecureChannel{
	"": nvmf.SecureAllowed, "allowed": nvmf.SecureAllowed, "required": nvmf.SecureRequired, "none": nvmf.SecureNone,
}

func subsystemConfig(s *config.Subsystem) nvmf.SubsystemConfig {
	c := nvmf.SubsystemConfig{NQN: s.NQN, Serial: s.Serial, MinCntlID: uint16(s.MinCntlID), MaxCntlID: uint16(s.MaxCntlID), SecureChannel: secureChannels[s.SecureChannel], Remote: remotes(s.Remote)}
	var rules []nvmf.HostRule
	for i := range s.Keys {
		k := &s.Keys[i]
		rules = append(rules, nvmf.HostRule{NQN: k.Host, Secret: k.Secret(), CtrlSecret: k.CtrlSecret(), TLSKey: k.TLSKey()})
	}
	for _, h := range s.Hosts {
		rules = append(rules, nvmf.HostRule{NQN: h})
	}
	if len(rules) == 0 && len(s.Networks) > 0 {
		rules = []nvmf.HostRule{{}}
	}
	for _, rule := range rules {
		for _, n := range s.Networks {
			if p, err := config.ParseNetwork(n); err == nil { // it has been checked
				rule.Networks = append(rule.Networks, p)
			}
		}
		c.Hosts = append(c.Hosts, rule)
	}
	return c
}

// remotes are portals of other nodes that serve a subsystem.
func remotes(l []config.Remote) (all []nvmf.Remote) {
	for _, p := range l {
		all = append(all, remote(p.Address, p.Protocols, ""))
	}
	return all
}

// referrals are discovery services of other nodes.
func referrals(l []config.Referral) (all []nvmf.Remote) {
	for _, p := range l {
		all = append(all, remote(p.Address, p.Protocols, p.NQN))
	}
	return all
}

func remote(address string, protocols []string, nqn string) nvmf.Remote {
	a, _ := config.ParseAddress(address) // it has been checked
	speaks := func(s string) bool { return len(protocols) == 0 || slices.Contains(protocols, s) }
	return nvmf.Remote{Address: a, TCP: speaks("nvme-tcp"), RDMA: speaks("nvme-rdma"), NQN: nqn}
}

// namespaceConfig describes a namespace but for its device.
func namespaceConfig(c *config.Config, v config.Volume, n config.Namespace) (nvmf.NamespaceConfig, error) {
	lc, err := lunConfig(c, v, config.LUN{ReadOnly: n.ReadOnly})
	nc := nvmf.NamespaceConfig{NSID: uint32(n.NSID), Name: v.Name, ReadOnly: lc.ReadOnly, Placement: lc.Placement, Workers: lc.Workers, QoS: lc.QoS}
	nc.Identity.Serial, nc.Identity.NAA = lc.Serial, lc.NAA
	if err == nil {
		nc.Access, err = spaceAccess(n)
	}
	return nc, err
}
