package iscsi

import (
	"fmt"
	"slices"
)

// targetTable is the targets of a front end, by name:
//
//	add ──▶ served ──leave──▶ leaving ──forget──▶ remembered, with who might use it
//	 ▲                                                 │
//	 └─────────────────────────────────────────────────┘
//
// A name is served or leaving, not both: what still holds the volumes of a target would be in
// the way of the next one's. The last maxRemembered are remembered: names may be ever new.
//
// Frontend.mu guards it: its methods are called with that held.
type targetTable struct {
	served  []*node         // in the order in which they were added; replaced, never changed in place
	leaving []*node         // taken away, but commands may still hold their volumes
	removed []removedTarget // that are remembered, those that went first at the front
}

// removedTarget is what is remembered of a target: who might use it is told that it has been removed.
type removedTarget struct {
	name string
	acl  ACL
}

const maxRemembered = 256

// byName matches a target by its normalized name.
func byName(name string) func(*node) bool {
	return func(n *node) bool { return n.cfg.Name == name }
}

// add serves a target.
func (t *targetTable) add(n *node) error {
	same := byName(n.cfg.Name)
	if slices.ContainsFunc(t.served, same) {
		return fmt.Errorf("target %s: there is one of that name already", n.cfg.Name)
	}
	if slices.ContainsFunc(t.leaving, same) {
		return fmt.Errorf("target %s: one of that name has been removed, but its commands still hold their volumes; remove it again to wait for them", n.cfg.Name)
	}
	t.served = append(slices.Clip(t.served), n)
	t.removed = slices.DeleteFunc(t.removed, func(r removedTarget) bool { return r.name == n.cfg.Name })
	return nil
}

// leave takes a target out of those that are served, if that has not been done before: no new
// session begins.
func (t *targetTable) leave(name string) (*node, error) {
	if i := slices.IndexFunc(t.leaving, byName(name)); i >= 0 {
		return t.leaving[i], nil
	}
	i := slices.IndexFunc(t.served, byName(name))
	if i < 0 {
		return nil, fmt.Errorf("target: there is no target %s", name)
	}
	n := t.served[i]
	n.gone = true
	t.served = slices.Concat(t.served[:i], t.served[i+1:])
	t.leaving = append(t.leaving, n)
	return n, nil
}

// forget is the end of a target that was leaving: nothing holds its volumes any more. Whoever
// removed it may have done so twice at a time.
func (t *targetTable) forget(n *node) {
	i := slices.Index(t.leaving, n)
	if i < 0 {
		return
	}
	t.leaving = slices.Delete(t.leaving, i, i+1)
	t.removed = append(t.removed, removedTarget{n.cfg.Name, n.access.Load().ACL})
	if over := len(t.removed) - maxRemembered; over > 0 {
		t.removed = slices.Delete(t.removed, 0, over)
	}
}

// find finds a target that is served, and who may use it; removed says that it was there once.
func (t *targetTable) find(name string) (n *node, acl ACL, removed bool) {
	if i := slices.IndexFunc(t.served, byName(name)); i >= 0 {
		n = t.served[i]
		return n, n.access.Load().ACL, false
	}
	if i := slices.IndexFunc(t.leaving, byName(name)); i >= 0 {
		return nil, t.leaving[i].access.Load().ACL, true
	}
	if i := slices.IndexFunc(t.removed, func(r removedTarget) bool { return r.name == name }); i >= 0 {
		return nil, t.removed[i].acl, true
	}
	return nil, ACL{}, false
}

// all returns the targets whose volumes are, or may be, in use.
func (t *targetTable) all() []*node { return slices.Concat(t.served, t.leaving) }

// knowSome reports whether a target that is served knows initiators: they have to prove
// themselves there, or its access list names them.
func (t *targetTable) knowSome() bool {
	return slices.ContainsFunc(t.served, func(n *node) bool {
		cfg := n.access.Load()
		return cfg.Auth.Required() || slices.ContainsFunc(cfg.ACL, Rule.namesSome)
	})
}
