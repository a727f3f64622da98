package iscsi

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"softiser/internal/iscsi"
)

// The table finds each session by everything that is asked for, whatever comes and goes in
// whichever order, and keeps nothing of one that has been removed.
func TestSessionTable(t *testing.T) {
	table := newSessionTable(Room{})
	nodes := []*node{nil, {}, {}}
	var there []*session // in the order in which they were added
	rng := rand.New(rand.NewPCG(1, 2))
	made := func() *session {
		n := &session{node: nodes[rng.IntN(len(nodes))], key: sessionKey{
			initiator: fmt.Sprint("iqn.2026-11.test:", rng.IntN(4)), isid: iscsi.ISID{5: byte(rng.IntN(6))}}}
		if n.node != nil {
			n.key.target = fmt.Sprintf("%p", n.node)
			n.user = []string{"", "alice", "bob"}[rng.IntN(3)]
		}
		n.share = shareKey{user: fmt.Sprint(rng.IntN(3)), discovery: n.discovery()}
		return n
	}
	check := func() {
		t.Helper()
		ports, kin, shares := map[sessionKey]*session{}, map[kinKey]int{}, map[shareKey]int{}
		var discoveries []*session
		for _, n := range there {
			if table.tsihs[n.tsih] != n {
				t.Fatalf("TSIH %d is that of another session", n.tsih)
			}
			shares[n.share]++
			if n.discovery() {
				discoveries = append(discoveries, n)
			} else {
				ports[n.key] = n
				kin[n.kin()]++
			}
		}
		if len(table.tsihs) != len(there) || len(table.ports) != len(ports) || len(table.kin) != len(kin) || len(table.shares) != len(shares) {
			t.Fatalf("%d sessions by TSIH, %d by port, %d names, %d shares; want %d, %d, %d, %d", len(table.tsihs), len(table.ports), len(table.kin), len(table.shares),
				len(there), len(ports), len(kin), len(shares))
		}
		for k, n := range ports {
			if table.ports[k] != n || len(table.kin.of(n)) != kin[n.kin()] {
				t.Fatalf("port %v has another session, or its name %d sessions, not %d", k, len(table.kin.of(n)), kin[n.kin()])
			}
		}
		for k, n := range shares {
			if table.shares[k] != n {
				t.Fatalf("share %v has %d sessions, want %d", k, table.shares[k], n)
			}
		}
		if !slices.Equal(table.discoveries, discoveries) {
			t.Fatal("the discovery sessions are not those that are there, by age")
		}
		if of := table.list(nodes[1]); !slices.IsSortedFunc(of, func(a, b *session) int { return int(a.tsih) - int(b.tsih) }) ||
			slices.ContainsFunc(of, func(n *session) bool { return n.node != nodes[1] }) {
			t.Fatal("the list of one target has others, or is not in order")
		}
	}
	for range 2000 {
		if i := rng.IntN(30); i < len(there) {
			table.remove(there[i])
			there = slices.Delete(there, i, i+1)
		} else if n := made(); table.ports[n.key] == nil {
			n.tsih = table.freeTSIH()
			if table.clashes(n) {
				t.Fatalf("TSIH %d is free, and taken", n.tsih)
			}
			table.add(n)
			if !table.clashes(n) {
				t.Fatal("a session may come in a second time")
			}
			there = append(there, n)
		}
		check()
	}
	for _, n := range there {
		table.remove(n)
	}
	there = nil
	check()
}

// A TSIH is not given away while a session has it, be it one that another process gave it to.
func TestTSIHs(t *testing.T) {
	table := newSessionTable(Room{})
	carried := &session{node: &node{}, tsih: 0xfffe}
	table.add(carried)
	for i, want := range []uint16{0xffff, 1, 2} { // not 0, which asks for a new session
		n := &session{node: &node{}, tsih: table.freeTSIH(), key: sessionKey{group: uint16(i)}}
		if n.tsih != want {
			t.Fatalf("TSIH %#x, want %#x", n.tsih, want)
		}
		table.add(n)
	}
	table.last = 0xfffd
	if got := table.freeTSIH(); got != 3 {
		t.Errorf("TSIH %#x, want the first that nobody has: 3", got)
	}
}

// Who gets a place, who has to make it, and what the others are told (ADR 102).
func TestPlaces(t *testing.T) {
	target := &node{}
	of := func(n *node, holder string) *session {
		return &session{node: n, share: shareKey{user: holder, discovery: n == nil}}
	}
	for _, tc := range []struct {
		what     string
		there    map[string]int // sessions by holder; "?" before its name: for discovery
		n        *session
		stranger bool
		refusal  string // "": there is a place
		victim   string // whose discovery session makes it
	}{
		{"an empty table", nil, of(target, "a"), true, "", ""},
		{"half of the table for one", map[string]int{"a": 4}, of(target, "a"), false, "its share", ""},
		{"less than half", map[string]int{"a": 3}, of(target, "a"), false, "", ""},
		{"another one's share", map[string]int{"a": 4}, of(target, "b"), false, "", ""},
		{"the same holder's discovery", map[string]int{"a": 4}, of(nil, "a"), false, "", ""},
		{"discovery beyond its share", map[string]int{"?a": 2, "b": 2}, of(nil, "a"), false, "", "a"},
		{"a session makes no room of its holder's discovery sessions", map[string]int{"?a": 2, "a": 2}, of(target, "a"), false, "its share", ""},
		{"the last places, a stranger", map[string]int{"a": 2, "b": 2, "c": 2}, of(target, "d"), true, "reserved", ""},
		{"the last places, one who is known", map[string]int{"a": 2, "b": 2, "c": 2}, of(target, "d"), false, "", ""},
		{"full", map[string]int{"a": 2, "b": 2, "c": 2, "d": 2}, of(target, "e"), false, "limit of 8", ""},
		{"full of discovery", map[string]int{"?a": 1, "b": 2, "c": 2, "d": 3}, of(target, "e"), false, "", "a"},
	} {
		table := newSessionTable(Room{Sessions: 8, SessionsPerAddress: 2, ReservedSessions: 2})
		for holder, n := range tc.there {
			name, discovery := strings.CutPrefix(holder, "?")
			for i := range n {
				x := of(target, name)
				if discovery {
					x = of(nil, name)
				}
				x.key = sessionKey{initiator: name, group: uint16(i)}
				x.tsih = table.freeTSIH()
				table.add(x)
			}
		}
		victim, err := table.placeFor(tc.n, tc.stranger)
		if (err == nil) != (tc.refusal == "") || err != nil && !strings.Contains(err.Error(), tc.refusal) {
			t.Errorf("%s: %v, want %q", tc.what, err, tc.refusal)
		}
		if (victim == nil) != (tc.victim == "") || victim != nil && victim.share.user != tc.victim {
			t.Errorf("%s: %v has to end, want one of %q", tc.what, victim, tc.victim)
		}
	}
}
