package main

import (
	"fmt"
	"maps"
	"os"
	"strings"
	"testing"

	"softiser/config"
	"softiser/internal/nvme/dhchap"
)

// TestConfigurations: a configuration that iser-target would refuse must not be
// found out only after a guest has been booted for it.
func TestConfigurations(t *testing.T) {
	portal := "portals:\n  - listen: 127.0.0.1:3260\n    advertise: 10.0.2.2:3260\n"
	for name, text := range map[string]string{
		"ram":       ramTarget,
		"xfs":       strings.Replace(ramTarget, "256MiB", "512MiB", 1),
		"slow":      slowTarget,
		"hanging":   hangingTarget,
		"many":      manyTargets(8, 4),
		"file":      fileTarget("64MiB"),
		"bursts":    ramTarget + burstLimits,
		"admin":     fileTarget("64MiB") + "admin: {socket: /tmp/admin.sock}\n",
		"ha":        haConfig("a", "/tmp/admin.sock", 1, 3261, 2, 1),
		"shared":    sharedTarget,
		"two":       twoSubsystems,
		"multipath": "  - listen: 127.0.0.1:3261\n    advertise: 10.0.2.2:3261\n" + fileTarget("64MiB"),
	} {
		if _, err := config.Parse([]byte(portal+text), t.TempDir()+"/target.yaml"); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	dir := t.TempDir()
	keys, err := chapNamespace(dir, []chapPair{{"nqn.2014-08.org.nvmexpress:uuid:00000000-0000-0000-0000-0000000000c0", dhchap.NewSecret().Reveal(), dhchap.NewSecret().Reveal()}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := config.Parse([]byte(portal+keys), dir+"/target.yaml"); err != nil {
		t.Errorf("chap: %v", err)
	}
	// The pair's nodes are told apart by all that has to differ.
	pair, err := os.ReadFile("../docs/ha/drbd-target.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for node, text := range map[string]string{"a": string(pair), "b": otherNode.Replace(string(pair))} {
		c, err := config.Parse([]byte(text), t.TempDir()+"/target.yaml")
		if err != nil {
			t.Fatalf("drbd, node %s: %v", node, err)
		}
		if c.HA.Node != node || c.Portals[0].Group == c.HA.Portals[0].Group {
			t.Errorf("drbd, node %s: %+v, %+v", node, c.HA, c.Portals)
		}
	}
}

// TestChapWays: every hash goes with no group and with one, one way and both, every group is
// there, and so is every kind of key.
func TestChapWays(t *testing.T) {
	pairs := []chapPair{{host: "a"}, {host: "b"}, {host: "c"}, {host: "d"}}
	seen := map[string]bool{}
	for _, w := range chapWays(pairs) {
		seen[fmt.Sprint("group ", w.group)], seen["host "+w.pair.host] = true, true
		seen[fmt.Sprint(w.hash, w.group > 0, w.both)] = true
	}
	if want := len(chapGroups) + len(pairs) + len(chapHashes)*4; len(seen) != want {
		t.Errorf("%d of %d: %v", len(seen), want, seen)
	}
}

// TestMatrix: names are unique and every case says what it expects.
func TestMatrix(t *testing.T) {
	seen := map[string]bool{}
	short := 0
	for _, c := range matrix {
		if seen[c.Name] {
			t.Errorf("%s is there twice", c.Name)
		}
		seen[c.Name] = true
		if c.Expect == "" || c.Run == nil || !strings.Contains(c.Name, "/") {
			t.Errorf("%s: incomplete", c.Name)
		}
		if c.Short {
			short++
		}
	}
	if short < 10 || short > len(matrix)/2 {
		t.Errorf("the short form has %d of %d cases", short, len(matrix))
	}
}

func TestTable(t *testing.T) {
	var b strings.Builder
	failed := printTable(&b, []Result{
		{Case: Case{Name: "a/b", Expect: "works"}, Seen: "worked"},
		{Case: Case{Name: "a/c", Expect: "works"}, Seen: "failed", Err: fmt.Errorf("why")},
	})
	if failed != 1 || !strings.Contains(b.String(), "a/c   works     failed  0.0") {
		t.Errorf("%d failed:\n%s", failed, b.String())
	}
}

// A table with a failure says so, and what the case said; a run that was gone on
// with names each commit.
func TestReport(t *testing.T) {
	var rec record
	rec.begin(nil)
	rec.commit, rec.day = "c0ffee1", "2026-01-02"
	cases := []Case{{Name: "a/b", Expect: "works"}, {Name: "a/c", Expect: "x | y"}, {Name: "a/d", Expect: "later"}}
	rec.add(Result{Case: cases[0], Seen: "worked"})
	rec.add(Result{Case: cases[1], Seen: "failed", Err: fmt.Errorf("why\nin two lines")})
	file := recordFile(t.TempDir())
	if err := rec.save(file); err != nil {
		t.Fatal(err)
	}
	rec, err := loadRecord(file)
	if err != nil {
		t.Fatal(err)
	}
	if !rec.passed("a/b") || rec.passed("a/c") || rec.passed("a/d") {
		t.Errorf("%+v", rec)
	}
	if n := len(rec.results(cases)); n != 2 {
		t.Errorf("%d results of an unfinished run", n)
	}
	rec.commit, rec.day = "decade2", "2026-01-03"
	rec.add(Result{Case: cases[2], Seen: "worked too"})
	var b strings.Builder
	report(&b, rec.results(cases), append(cases, Case{Name: "a/e"}))
	for _, want := range []string{
		"2 of 4 cases ended as expected, 2 on 2026-01-02 at commit c0ffee1, 1 on 2026-01-03 at commit decade2.",
		"1 cases have no line, because no run of them has come to an end: a/e.",
		"| a/b | works | worked | 0.0 | c0ffee1, 2026-01-02 |\n| a/c | x \\| y | **failed** | 0.0 | c0ffee1, 2026-01-02 |\n| a/d | later | worked too | 0.0 | decade2, 2026-01-03 |\n", "## What failed\n\na/c:\n\n    why\n    in two lines\n",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is missing:\n%s", want, b.String())
		}
	}
	if _, err := loadRecord(recordFile(t.TempDir())); err == nil {
		t.Error("a run that never was is gone on with")
	}
}

// What a part of the matrix came to is merged into the record of the document: a later
// failure replaces a pass, a skip or an older run replaces nothing, and each row keeps its commit.
func TestMerge(t *testing.T) {
	cases := []Case{{Name: "a/failed"}, {Name: "a/skipped"}, {Name: "a/older"}, {Name: "a/new"}, {Name: "a/alone"}, {Name: "a/never"}}
	pass := func(commit, day string) outcome { return outcome{Seen: "worked", Commit: commit, Day: day} }
	rec := record{Peers: "fio 1", Cases: map[string]outcome{
		"a/failed": pass("one", "2026-01-02"), "a/skipped": pass("one", "2026-01-02"), "a/older": pass("one", "2026-01-02"),
		"a/alone": pass("one", "2026-01-02"), "a/gone": pass("one", "2026-01-02"),
	}}
	rec.merge(&record{Cases: map[string]outcome{
		"a/failed":  {Seen: "failed", Error: "why", Commit: "two", Day: "2026-01-02"},
		"a/skipped": {Seen: "skipped", Skipped: true, Commit: "two", Day: "2026-01-03"},
		"a/older":   pass("nought", "2026-01-01"),
		"a/new":     pass("two", "2026-01-03"),
	}}, cases)
	got := map[string]string{}
	for name, o := range rec.Cases {
		got[name] = o.Seen + " " + o.Commit
	}
	want := map[string]string{"a/failed": "failed two", "a/skipped": "worked one", "a/older": "worked one", "a/new": "worked two", "a/alone": "worked one"}
	if !maps.Equal(got, want) {
		t.Errorf("%v, not %v", got, want)
	}
	if rec.Peers != "fio 1" {
		t.Errorf("peers %q: a run without the cluster's image knows nothing of them", rec.Peers)
	}
}
