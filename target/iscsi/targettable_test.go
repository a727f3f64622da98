package iscsi

import (
	"slices"
	"strings"
	"testing"
)

// A target is served, leaves, and is forgotten but for its name; only then may another one have it.
func TestTargetTable(t *testing.T) {
	table := newTargetTable()
	made := func(name string, acl ACL) *node {
		n := &node{cfg: Target{Name: name, ACL: acl}}
		n.access.Store(&n.cfg)
		return n
	}
	refused := func(err error, why string) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%v, want an error that says %q", err, why)
		}
	}
	a, b := made("a", ACL{{Initiator: "iqn.2026-11.test:*"}}), made("b", nil)
	for _, n := range []*node{a, b} {
		if err := table.add(n); err != nil {
			t.Fatal(err)
		}
	}
	refused(table.add(made("a", nil)), "already")
	if !table.knowSome() {
		t.Error("a list that has names in it knows nobody")
	}

	before := table.served
	if n, err := table.leave("a"); n != a || err != nil || !a.gone {
		t.Fatalf("%v, %v; gone %v", n, err, a.gone)
	}
	if !slices.Equal(before, []*node{a, b}) || !slices.Equal(table.served, []*node{b}) || !slices.Equal(table.all(), []*node{b, a}) {
		t.Error("the list of who has read it has changed, or the new one is wrong")
	}
	if table.knowSome() {
		t.Error("a target that is leaving counts")
	}
	if n, acl, removed := table.find("a"); n != nil || len(acl) != 1 || !removed {
		t.Errorf("one that has left: %v, %v, %v", n, acl, removed)
	}
	refused(table.add(made("a", nil)), "hold their volumes")
	if n, err := table.leave("a"); n != a || err != nil { // who asks again waits for the rest
		t.Errorf("%v, %v", n, err)
	}

	table.forget(a)
	_, err := table.leave("a")
	refused(err, "no target a")
	if _, _, removed := table.find("a"); !removed {
		t.Error("its name is not remembered")
	}
	again := made("a", nil)
	if err := table.add(again); err != nil {
		t.Fatal(err)
	}
	if n, _, removed := table.find("a"); n != again || removed {
		t.Errorf("%v, removed %v", n, removed)
	}
	if _, _, removed := table.find("c"); removed {
		t.Error("one that never was has been removed")
	}
}
