package nvmf

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"go.uber.org/zap"

	"softiser/target/portal"
)

// This file is what an administrator does to the namespaces of a subsystem that is served.

// AddNamespace adds a namespace to a subsystem; hosts that are there are told.
func (f *Frontend) AddNamespace(nqn string, cfg NamespaceConfig) error {
	s := f.served(nqn)
	if s == nil {
		return noSubsystem(nqn)
	}
	if err := s.vacant(cfg.NSID); err != nil {
		return fmt.Errorf("nvmf: subsystem %s, namespace %d: %w", nqn, cfg.NSID, err)
	}
	n, err := newNamespace(s, &cfg)
	if err == nil {
		if err = s.insert(n); err != nil { // somebody was faster
			_, ended := n.end(context.Background())
			err = errors.Join(err, ended)
		}
	}
	if err != nil {
		return fmt.Errorf("nvmf: subsystem %s, namespace %d: %w", nqn, cfg.NSID, err)
	}
	n.place.Start()
	f.log.Info("namespace added", zap.String("subsystem", nqn), zap.Uint32("nsid", n.id), zap.String("volume", cfg.Name))
	s.groupsChanged() // first: a host adds no disk before it knows the state of its group
	s.namespaceChanged(n.id)
	return nil
}

// RemoveNamespace takes a namespace away, under load if need be; hosts are told, and its
// volume is flushed. If ctx ends while commands still hold the volume the error is
// portal.ErrVolumesHeld, and RemoveNamespace may be called again to wait for the rest.
func (f *Frontend) RemoveNamespace(ctx context.Context, nqn string, nsid uint32) error {
	s := f.served(nqn)
	if s == nil {
		return noSubsystem(nqn)
	}
	n, first := s.withdraw(nsid)
	if n == nil {
		return fmt.Errorf("nvmf: subsystem %s has no namespace %d", nqn, nsid)
	}
	if first {
		s.groupsChanged()
		s.namespaceChanged(nsid)
	}
	over, err := n.end(ctx)
	if over {
		s.mu.Lock()
		s.leaving = slices.DeleteFunc(slices.Clone(s.leaving), func(o *namespace) bool { return o == n })
		s.mu.Unlock()
		f.log.Info("namespace removed", zap.String("subsystem", nqn), zap.Uint32("nsid", nsid), zap.String("volume", n.cfg.Name))
	}
	return err
}

// Vacant says why a subsystem cannot get a namespace of that identifier, whatever its volume is; nil:
// it can.
func (f *Frontend) Vacant(nqn string, nsid uint32) error {
	s := f.served(nqn)
	if s == nil {
		return noSubsystem(nqn)
	}
	if err := s.vacant(nsid); err != nil {
		return fmt.Errorf("nvmf: subsystem %s, namespace %d: %w", nqn, nsid, err)
	}
	return nil
}

// served returns a subsystem that has not been taken away; nil: there is none.
func (f *Frontend) served(nqn string) *subsystem {
	for _, s := range f.list() {
		if s.cfg.NQN == nqn {
			return s
		}
	}
	return nil
}

// vacant says why a namespace cannot get an identifier.
func (s *subsystem) vacant(id uint32) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.vacantLocked(id)
}

func (s *subsystem) vacantLocked(id uint32) error {
	same := func(n *namespace) bool { return n.id == id }
	switch {
	case s.gone:
		return errRemoved
	case slices.ContainsFunc(s.list(), same):
		return errors.New("the identifier is taken")
	case slices.ContainsFunc(s.leaving, same):
		return fmt.Errorf("%w: one that had the identifier has been removed, but commands still hold its volume; remove it again to wait for them", portal.ErrVolumesHeld)
	}
	return nil
}

// insert lets hosts see a namespace.
func (s *subsystem) insert(n *namespace) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.vacantLocked(n.id); err != nil {
		return err
	}
	l := slices.Clone(s.list())
	i, _ := slices.BinarySearchFunc(l, n.id, func(o *namespace, id uint32) int { return int(o.id) - int(id) })
	l = slices.Insert(l, i, n)
	s.namespaces.Store(&l)
	return nil
}

// withdraw hides a namespace from hosts; first says that it was seen until now.
func (s *subsystem) withdraw(id uint32) (n *namespace, first bool) {
	same := func(n *namespace) bool { return n.id == id }
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.IndexFunc(s.leaving, same); i >= 0 {
		return s.leaving[i], false
	}
	l := slices.Clone(s.list())
	i := slices.IndexFunc(l, same)
	if i < 0 {
		return nil, false
	}
	n = l[i]
	l = slices.Delete(l, i, i+1)
	s.namespaces.Store(&l)
	s.leaving = append(slices.Clone(s.leaving), n)
	return n, true
}

// held are the namespaces that commands may be in: those that hosts see, and those that
// have been taken away and are not over.
func (s *subsystem) held() []*namespace {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Concat(s.list(), s.leaving)
}

// namespaceChanged tells every controller that a namespace is another one than before.
func (s *subsystem) namespaceChanged(id uint32) {
	for _, c := range s.all() {
		c.events.namespaceChanged(id)
	}
}
