package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"softiser/lvm"
)

// logicalBed serves a thin volume and a plain one, each with a snapshot of what old is.
func logicalBed(t *testing.T, old []byte) (s *served, group string, disks []string) {
	t.Helper()
	dir := t.TempDir()
	group = fmt.Sprintf("vgup%d", os.Getpid())
	disks = []string{filepath.Join(dir, "a.img"), filepath.Join(dir, "b.img")}
	t.Cleanup(func() { // root's own archive and backup
		files, _ := filepath.Glob("/etc/lvm/archive/" + group + "_*")
		for _, f := range append(files, "/etc/lvm/backup/"+group) {
			os.Remove(f)
		}
	})
	file := filepath.Join(dir, "c.yaml")
	err := os.WriteFile(file, fmt.Appendf(nil, `volumes:
  - {name: thin, type: lvm, vg: %[1]s, lv: thin, pool: pool, pool_size: 48MiB, devices: [%[2]s, %[3]s], size: 8MiB, create: true}
  - {name: plain, type: lvm, vg: %[1]s, lv: plain, devices: [%[2]s, %[3]s], size: 8MiB, stripes: 2, create: true}
targets:
  - iqn: iqn.2026-11.softiser:thin
    luns: [{lun: 0, volume: thin}]
  - iqn: iqn.2026-11.softiser:plain
    luns: [{lun: 0, volume: plain}]
`, group, disks[0], disks[1]), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	s = serveProgram(t, "--config", file)
	for volume, args := range map[string][]string{
		"thin":  {"lvcreate", "-s", "-n", "thinsnap", group + "/thin"},
		"plain": {"lvcreate", "-s", "-L", "16m", "-n", "plainsnap", group + "/plain"},
	} {
		l := attach(t, s.addr, "iqn.2026-11.softiser:"+volume)
		if _, err := l.WriteAt(old, 0); err != nil {
			t.Fatal(err)
		}
		l.Close()
		if code, out := command(t, append([]string{"lvm", "--socket", s.socket}, args...)...); code != 0 {
			t.Fatal(out)
		}
	}
	return s, group, disks
}

// TestUpgradeLogical: logical volumes go from process to process under load, with the sessions
// that use them, and their snapshots stay what they are. A process that vanishes before they
// are its own leaves them to the old one.
func TestUpgradeLogical(t *testing.T) {
	old := bytes.Repeat([]byte("as it was"), 3<<20/9+1)[:3<<20]
	s, group, disks := logicalBed(t, old)
	all := []*verifier{
		verify(s.open("iqn.2026-11.softiser:thin", ""), 2),
		verify(s.openOver("iser", "iqn.2026-11.softiser:plain", ""), 2),
	}
	for _, refuse := range []bool{false, true} {
		got := offered(t, s.socket)
		if !strings.Contains(string(got.State), `"groups"`) {
			t.Errorf("no group was offered: %s", got.State)
		}
		if refuse {
			got.Refuse(errors.New("no"))
		}
		got.Close()
	}
	s.upgradeUnder(all, "volume group "+group+" with 2 disks")
	if code, out := command(t, "lvm", "--socket", s.socket, "lvs", "--noheadings", "-o", "lv_name", group); code != 0 || !strings.Contains(out, "plainsnap") {
		t.Errorf("the last process does not know the group: %s", out)
	}
	s.end()
	g, err := lvm.Open(lvm.Config{}, disks, group)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"thinsnap", "plainsnap"} {
		v, err := g.Volume(name)
		if err != nil {
			t.Fatal(err)
		}
		b := make([]byte, len(old))
		if _, err := v.ReadAt(b, 0); err != nil || !bytes.Equal(b, old) {
			t.Errorf("%s is not what it was (%v)", name, err)
		}
		v.Close()
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}
}
