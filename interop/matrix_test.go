package main

import (
	"fmt"
	"strings"
	"testing"

	"softiser/config"
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
		"multipath": "  - listen: 127.0.0.1:3261\n    advertise: 10.0.2.2:3261\n" + fileTarget("64MiB"),
	} {
		if _, err := config.Parse([]byte(portal+text), t.TempDir()+"/target.yaml"); err != nil {
			t.Errorf("%s: %v", name, err)
		}
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
