package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"softiser/internal/loopback"
)

// The folder that commit 5d871a0 has left when it was killed, with a reservation that persists:
// it is taken to this version, the reservation holds, and the next start finds the version. One
// of a later version is refused by check and serve, and not touched.
func TestStateOfOtherVersions(t *testing.T) {
	dir := t.TempDir()
	b := &reloadBed{t: t, dir: dir, addr: loopback.FreeAddr(t), sock: filepath.Join(dir, "s"), f: filepath.Join(dir, "c.yaml")}
	state := filepath.Join(dir, "state")
	if err := os.CopyFS(state, os.DirFS("testdata/state-of-5d871a0")); err != nil {
		t.Fatal(err)
	}
	b.write(`
portals: [{listen: "ADDR"}]
volumes: [{name: d, type: file, path: d.img, size: 1MiB, create: true, wwid: 6000000000000000000000000000da7a}]
targets: [{iqn: "iqn.2026-11.test:a", luns: [{lun: 0, volume: d}]}]
admin: {socket: SOCK, state_dir: state}
`)
	for i, migrated := range []bool{true, false} {
		log, stop := start(t, "--config", b.f)
		r := b.status().Volumes[0].Reservation
		if r == nil || r.Type != "write exclusive" || len(r.Registrants) != 1 || r.Registrants[0].Key != "0x0000000000000abc" || !r.Registrants[0].Holder || !r.Persist {
			t.Errorf("start %d: %+v", i, r)
		}
		if strings.Contains(log.String(), "the state folder is of an earlier version") != migrated {
			t.Errorf("start %d: %s", i, log)
		}
		stop()
	}
	version := filepath.Join(state, "version")
	later := `{"version":2,"program":"7.1"}`
	if err := os.WriteFile(version, []byte(later), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"serve", "--config", b.f}, {"check", "--no-open", "--config", b.f}} {
		code, out := command(t, args...)
		if code != exitUsage || !strings.Contains(out, version+": the folder has version 2") || !strings.Contains(out, "7.1") || !strings.Contains(out, "up to 1") {
			t.Errorf("%s: exit %d, %s", args[0], code, out)
		}
	}
	if text, err := os.ReadFile(version); err != nil || string(text) != later {
		t.Errorf("%q, %v", text, err)
	}
}
