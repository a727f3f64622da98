package iscsi

import (
	"slices"
	"strconv"
	"strings"
	"testing"
)

func madeNode(name string, acl ACL) *node {
	n := &node{cfg: Target{Name: name, ACL: acl}}
	n.access.Store(&n.cfg)
	return n
}

// A target is served, leaves, and is forgotten but for its name; only then may another one have it.
func TestTargetTable(t *testing.T) {
	var table targetTable
	refused := func(err error, why string) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%v, want an error that says %q", err, why)
		}
	}
	a, b := madeNode("a", ACL{{Initiator: "iqn.2026-11.test:*"}}), madeNode("b", nil)
	for _, n := range []*node{a, b} {
		if err := table.add(n); err != nil {
			t.Fatal(err)
		}
	}
	refused(table.add(madeNode("a", nil)), "already")
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
	refused(table.add(madeNode("a", nil)), "hold their volumes")
	if n, err := table.leave("a"); n != a || err != nil { // who asks again waits for the rest
		t.Errorf("%v, %v", n, err)
	}

	table.forget(a)
	_, err := table.leave("a")
	refused(err, "no target a")
	if _, _, removed := table.find("a"); !removed {
		t.Error("its name is not remembered")
	}
	again := madeNode("a", nil)
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

// However many targets come and go under ever new names, no more than the last are remembered.
func TestTargetTableForgetsTheOldest(t *testing.T) {
	var table targetTable
	name := func(i int) string { return "t" + strconv.Itoa(i) }
	const all = maxRemembered + 10
	for i := range all {
		n := madeNode(name(i), nil)
		if err := table.add(n); err != nil {
			t.Fatal(err)
		}
		if _, err := table.leave(name(i)); err != nil {
			t.Fatal(err)
		}
		table.forget(n)
		table.forget(n) // two have removed it at once
	}
	for i := range all {
		if _, _, removed := table.find(name(i)); removed != (i >= all-maxRemembered) {
			t.Errorf("target %d of %d is remembered: %v", i, all, removed)
		}
	}
	if len(table.removed) != maxRemembered || len(table.leaving) != 0 {
		t.Errorf("%d are remembered, %d are leaving", len(table.removed), len(table.leaving))
	}
}
