package iscsi

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"softiser/blockdev"
	"softiser/internal/iscsi"
	"softiser/target/internal/loglimit"
	"softiser/target/portal"
	"softiser/target/scsi"
)

// This file is what an administrator does to targets and their LUNs.

// AddTarget adds a target with its LUNs. A LUN that cannot be added is an error
// that names it; the target and the other LUNs are there all the same, so that
// one bad volume does not take the rest with it.
func (s *Frontend) AddTarget(t Target) error {
	t.Name = iscsi.NormalizeName(t.Name)
	if err := iscsi.CheckName(t.Name); err != nil {
		return fmt.Errorf("target: %w", err)
	}
	if t.Session != nil {
		p := *t.Session
		if err := p.fill(); err != nil {
			return fmt.Errorf("target %s: %w", t.Name, err)
		}
		t.Session = &p
	}
	for _, g := range t.Portals {
		if !slices.ContainsFunc(s.cfg.Portals, func(p *portal.Portal) bool { return p.Config().Group == g }) {
			return fmt.Errorf("target %s: there is no portal with group %d", t.Name, g)
		}
	}
	for _, l := range t.Listen {
		if !slices.ContainsFunc(s.cfg.Portals, func(p *portal.Portal) bool { return p.Config().Listen == l }) {
			return fmt.Errorf("target %s: there is no portal %s", t.Name, l)
		}
	}
	luns := t.LUNs
	t.LUNs = nil
	n := &node{srv: s, cfg: t}
	n.access.Store(&t)
	var err error
	if n.device, err = scsi.NewDevice(s.deviceConfig(&t)); err != nil {
		return err
	}

	s.mu.Lock()
	err = s.targets.add(n)
	s.mu.Unlock()
	if err != nil {
		return err
	}
	s.log.Info("target added", zap.String("target", t.Name))

	var errs []error
	for _, l := range luns {
		errs = append(errs, s.AddLUN(t.Name, l))
	}
	return errors.Join(errs...)
}

// deviceConfig describes the SCSI side of a target. Unless the configuration says
// otherwise each portal group is a target port group with one port of the same
// number, so that multipath software tells the paths apart.
func (s *Frontend) deviceConfig(t *Target) scsi.Config {
	name := t.Name
	var faults sync.Map // of *loglimit.Limit, by LUN: a flood from one hides no other
	c := scsi.Config{Name: t.Name, Groups: t.PortGroups, ExplicitALUA: t.ExplicitALUA, StateDir: s.cfg.StateDir, Staging: s.cfg.Staging, Volumes: s.volumes, Fault: func(lun uint16, err error) {
		l, _ := faults.LoadOrStore(lun, &loglimit.Limit{Every: time.Second})
		l.(*loglimit.Limit).Warn(s.log, "a volume failed a command", zap.String("target", name), zap.Uint16("lun", lun), zap.Error(err))
	}}
	for _, p := range t.Remote {
		if !slices.ContainsFunc(c.Remote, func(g scsi.PortGroup) bool { return g.ID == p.Group }) {
			c.Remote = append(c.Remote, scsi.PortGroup{ID: p.Group, Ports: []uint16{p.Group}})
		}
	}
	if len(c.Groups) > 0 {
		return c
	}
	n := node{cfg: *t}
	for _, p := range s.cfg.Portals {
		known := slices.ContainsFunc(c.Groups, func(g scsi.PortGroup) bool { return g.ID == p.Config().Group })
		if n.offeredOn(p) && !known {
			c.Groups = append(c.Groups, scsi.PortGroup{ID: p.Config().Group, Ports: []uint16{p.Config().Group}})
		}
	}
	return c
}

// UpdateTarget changes who may log in to a target and what it is called: Alias,
// Auth, ACL and Redirect are taken from t, the rest of it does not count. Sessions
// that are there stay; the next login goes by the new rules.
func (s *Frontend) UpdateTarget(t Target) error {
	n, err := s.node(t.Name)
	if err != nil {
		return err
	}
	now := n.cfg
	now.Alias, now.Auth, now.ACL, now.Redirect = t.Alias, t.Auth, t.ACL, t.Redirect
	n.access.Store(&now)
	s.log.Info("target updated", zap.String("target", n.cfg.Name))
	return nil
}

// RemoveTarget ends the sessions of a target and takes it away. Volumes are
// flushed. If ctx ends while commands still hold a volume, the target is gone for
// initiators, and RemoveTarget may be called again to wait for the rest: only when it
// returns something else than ctx's error may the volumes be closed.
func (s *Frontend) RemoveTarget(ctx context.Context, name string) error {
	s.mu.Lock()
	n, err := s.targets.leave(iscsi.NormalizeName(name))
	s.mu.Unlock()
	if err != nil {
		return err
	}
	sessions := s.sessionList(n)
	for _, x := range sessions {
		x.dismiss(errRemoved)
	}
	over, err := n.end(ctx)
	if !over {
		return fmt.Errorf("target %s: %w", n.cfg.Name, err)
	}
	for _, x := range sessions {
		<-x.done // from then on no volume refers to the session
	}
	s.mu.Lock()
	s.targets.forget(n)
	s.mu.Unlock()
	s.log.Info("target removed", zap.String("target", n.cfg.Name))
	return err
}

// node finds a target by name.
func (s *Frontend) node(name string) (*node, error) {
	n, _, _ := s.lookup(name)
	if n == nil {
		return nil, fmt.Errorf("target: there is no target %s", strings.ToLower(name))
	}
	return n, nil
}

// AddLUN adds a volume to a target; initiators that are logged in are told.
func (s *Frontend) AddLUN(target string, l LUN) error {
	n, err := s.node(target)
	if err != nil {
		return err
	}
	n.adding.Lock()
	defer n.adding.Unlock()
	if err := n.vacant(l.LUN); err != nil {
		return err
	}
	lu, err := n.device.AddLUN(l.LUConfig)
	if err != nil {
		return err
	}
	e := lunEntry{LUN: l, lu: lu, ending: &lunEnding{done: make(chan struct{})}}
	e.release, err = s.registerMemory(l.Volume)
	n.mu.Lock()
	i, _ := slices.BinarySearchFunc(n.luns, l.LUN, compareLUN)
	n.luns = slices.Insert(n.luns, i, e)
	n.mu.Unlock()
	if s.isGone(n) { // who removes the target may have looked at its LUNs before
		_, ended := e.end(context.Background(), n)
		return errors.Join(fmt.Errorf("target %s: %w", n.cfg.Name, errRemoved), ended)
	}
	if err != nil {
		// Its data travels all the same, under the key for any local memory.
		s.log.Warn("the volume's memory could not be registered", zap.String("volume", l.Name), zap.Error(err))
	}
	s.log.Info("LUN added", zap.String("target", n.cfg.Name), zap.Uint16("lun", l.LUN), zap.String("volume", l.Name))
	n.reportLUNs()
	return nil
}

// isGone reports whether the removal of a target has begun.
func (s *Frontend) isGone(n *node) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return n.gone
}

// Vacant says why a target cannot get a LUN of that number, whatever its volume is; nil: it can.
func (s *Frontend) Vacant(target string, number uint16) error {
	n, err := s.node(target)
	if err != nil {
		return err
	}
	return n.vacant(number)
}

func (n *node) vacant(number uint16) error {
	switch old, err := n.lun(number); {
	case err != nil:
		return nil
	case old.lu.Removed():
		return fmt.Errorf("target %s: LUN %d has been removed, but volume %s is still in use; remove it again to wait for its end", n.cfg.Name, number, old.Name)
	}
	return fmt.Errorf("target %s: LUN %d exists already; remove it first", n.cfg.Name, number)
}

// registerMemory makes the mapping of a volume an RDMA memory region: O(1), and
// no page is pinned or touched.
func (s *Frontend) registerMemory(v blockdev.Device) (release func() error, err error) {
	m, ok := v.(blockdev.Mapped)
	if !ok {
		return nil, nil
	}
	mem := m.Mapping()
	if len(mem) == 0 {
		return nil, nil
	}
	var undo []func() error
	release = func() error {
		var errs []error
		for _, f := range undo {
			errs = append(errs, f())
		}
		return errors.Join(errs...)
	}
	for _, d := range s.wires.Devices() {
		one, err := d.Register(mem)
		if err != nil {
			return nil, errors.Join(err, release())
		}
		undo = append(undo, one)
	}
	return release, nil
}

// RemoveLUN takes a volume away from a target, under load if need be: new
// commands find no such unit, and when RemoveLUN returns without an error
// nothing uses the volume any more, so that its owner may close it.
func (s *Frontend) RemoveLUN(ctx context.Context, target string, number uint16) error {
	n, err := s.node(target)
	if err != nil {
		return err
	}
	e, err := n.lun(number)
	if err != nil {
		return err
	}
	// When the time was over at the last attempt, only waiting is left, and end says for
	// what.
	if !e.lu.Removed() {
		if err := n.device.RemoveLUN(ctx, number); err != nil && ctx.Err() == nil {
			return err
		}
	}
	over, err := e.end(ctx, n)
	if !over {
		return fmt.Errorf("target %s: %w", n.cfg.Name, err)
	}
	n.mu.Lock()
	n.luns = slices.DeleteFunc(n.luns, func(x lunEntry) bool { return x.lu == e.lu })
	n.mu.Unlock()
	s.log.Info("LUN removed", zap.String("target", n.cfg.Name), zap.Uint16("lun", number), zap.String("volume", e.Name))
	n.reportLUNs()
	return err
}

// SetAccessState changes the asymmetric access state (ALUA) of a LUN through one
// portal group. Initiators are told by a unit attention.
func (s *Frontend) SetAccessState(target string, number, group uint16, state scsi.AccessState) error {
	n, err := s.node(target)
	if err != nil {
		return err
	}
	if err := n.device.SetAccessState(number, group, state); err != nil {
		return err
	}
	s.log.Info("access state changed", zap.String("target", n.cfg.Name), zap.Uint16("lun", number), zap.Uint16("group", group), zap.Stringer("state", state))
	return nil
}

// reportLUNs tells every initiator that the set of logical units has changed.
func (n *node) reportLUNs() {
	for _, x := range n.srv.sessionList(n) {
		if c := x.conns.speaker(); c != nil {
			c.out.reportLUNs()
		}
	}
}
