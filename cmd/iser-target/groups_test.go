package main

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"softiser/internal/loopback"
)

// Readiness is told to whoever asked for it: a newline on a descriptor, which is closed, and
// sd_notify's datagram.
func TestTellReady(t *testing.T) {
	name := filepath.Join(t.TempDir(), "notify")
	manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer manager.Close()
	t.Setenv("NOTIFY_SOCKET", name)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	fd, err := syscall.Dup(int(w.Fd())) // tellReady closes it
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	if err := tellReady(fd); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 64)
	if n, err := r.Read(b); err != nil || string(b[:n]) != "\n" {
		t.Errorf("the descriptor got %q, %v", b[:n], err)
	}
	if n, _, err := manager.ReadFrom(b); err != nil || string(b[:n]) != "READY=1" {
		t.Errorf("the manager got %q, %v", b[:n], err)
	}
	t.Setenv("NOTIFY_SOCKET", name+".none")
	if err := tellReady(0); err == nil {
		t.Error("a manager that is not there was told")
	}
}

// A group is promoted and demoted by one command each; its volume is open in between alone,
// and its access states change by nothing else. A portal may have an address that the
// machine does not have yet.
func TestPromoteAndDemote(t *testing.T) {
	dir := t.TempDir()
	socket, disk := filepath.Join(dir, "s"), filepath.Join(dir, "disk0.img")
	for name, err := range map[string]error{"disk": os.WriteFile(disk, make([]byte, 1<<20), 0o600), "store": os.Mkdir(filepath.Join(dir, "store"), 0o700)} {
		if err != nil {
			t.Fatal(name, err)
		}
	}
	file := filepath.Join(dir, "c.yaml")
	text := `
portals: [{listen: "` + loopback.FreeAddr(t) + `"}, {listen: "192.0.2.77:3260", group: 2, freebind: true}]
volumes: [{name: disk0, type: file, path: disk0.img, size: 1MiB, wwid: 6000000000000000000000000000da7a, serial: S1}]
targets: [{iqn: iqn.2026-11.test:a, luns: [{lun: 0, volume: disk0, alua_groups: [{group: 2, state: active-non-optimized}]}]}]
ha: {node: a, store: store, groups: [{name: g1, volumes: [disk0], fencing: node}]}
admin: {socket: ` + socket + `}
logging: {level: error}
`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, out := command(t, "check", "--config", file); code != 0 {
		t.Fatalf("check: exit %d\n%s", code, out)
	}
	_, stop := start(t, "--config", file)
	do := func(want string, code int, args ...string) {
		t.Helper()
		if c, out := command(t, append(args, "--socket", socket)...); c != code || !strings.Contains(out, want) {
			t.Fatalf("%v: exit %d, %q; want %d, %q", args, c, out, code, want)
		}
	}
	locked := func() bool {
		f, err := os.Open(disk)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil
	}
	do("standby\n", 0, "group", "g1")
	if locked() {
		t.Error("the disk is open on standby")
	}
	do("", 0, "promote", "g1")
	do("active\n", 0, "group", "g1")
	do("active-non-optimized", 0, "status", "--json")
	if !locked() {
		t.Error("the disk is not open")
	}
	do("iser-target promote g1 and demote", 1, "lun", "access", "iqn.2026-11.test:a", "0", "1", "standby")
	do(`no group "g2"`, 1, "promote", "g2")
	do("--timeout=0s: it is how long", exitUsage, "promote", "g1", "--timeout", "0")
	do("--timeout=-1s: it is how long", exitUsage, "demote", "g1", "--timeout=-1s")
	do(`no group "g2"`, 1, "group", "g2")
	do("", 0, "demote", "iqn.2026-11.test:a")
	do("group g1 is standby, fenced by node", 0, "status")
	if locked() {
		t.Error("the disk is still open")
	}
	if err := os.Remove(disk); err != nil {
		t.Fatal(err)
	}
	do("group g1 is not promoted: volume disk0", 1, "promote", "g1")
	do("standby\n", 0, "group", "g1")
	if code := stop(); code != 0 {
		t.Errorf("serve: exit %d", code)
	}
}
