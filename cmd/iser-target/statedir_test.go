package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"softiser/internal/doctor"
	"softiser/internal/loopback"
)

// TestStateFolderBeforeTheStart: check and doctor say of the folder what serve then finds.
func TestStateFolderBeforeTheStart(t *testing.T) {
	for _, c := range []struct {
		what   string
		make   func(dir string) error
		starts bool
		level  doctor.Level
	}{
		{"it is not there", func(string) error { return nil }, true, doctor.Note},
		{"it leads to nothing", func(dir string) error { return os.Symlink("nothing", filepath.Join(dir, "state")) }, false, doctor.Error},
		{"nothing is on the way", func(dir string) error { return os.Symlink("nothing", filepath.Join(dir, "way")) }, false, doctor.Error},
	} {
		t.Run(c.what, func(t *testing.T) {
			dir := t.TempDir()
			b := &reloadBed{t: t, dir: dir, addr: loopback.FreeAddr(t), sock: filepath.Join(dir, "s"), f: filepath.Join(dir, "c.yaml")}
			if err := c.make(dir); err != nil {
				t.Fatal(err)
			}
			state := "state"
			if c.what == "nothing is on the way" {
				state = "way/state"
			}
			b.write(`
portals: [{listen: "ADDR"}]
volumes: [{name: d, type: memory, size: 1MiB}]
targets: [{iqn: "iqn.2026-11.test:a", luns: [{lun: 0, volume: d}]}]
admin: {socket: SOCK, state_dir: ` + state + `}
`)
			code, out := command(t, "check", "--config", b.f)
			if (code == 0) != c.starts || !c.starts && (code != exitUsage || !strings.Contains(out, "admin.state_dir: ")) {
				t.Errorf("check: exit %d, %s", code, out)
			}
			want := 0
			if !c.starts {
				want = exitFailure
			}
			if by := examined(t, want, "-c", b.f); by["state_dir"].Level != c.level || by["configuration"].Level != doctor.OK {
				t.Errorf("doctor: %+v, %+v", by["state_dir"], by["configuration"])
			}
			if c.starts {
				_, stop := start(t, "--config", b.f)
				stop()
			} else if code, out := command(t, "serve", "--config", b.f); code == 0 || !strings.Contains(out, "admin.state_dir: ") {
				t.Errorf("serve: exit %d, %s", code, out)
			}
		})
	}
}

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
