package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"softiser/internal/await"
	"softiser/internal/loopback"
)

// A target takes a snapshot when one is due, removes the oldest of its own, tells of that, and
// a restart or a reload takes no more than are due.
func TestScheduledSnapshots(t *testing.T) {
	dir := t.TempDir()
	socket, file := filepath.Join(dir, "s"), filepath.Join(dir, "c.yaml")
	portal, metrics := loopback.FreeAddr(t), loopback.FreeAddr(t)
	group := fmt.Sprintf("vgsnap%d", os.Getpid())
	t.Cleanup(func() { // root's own archive and backup
		files, _ := filepath.Glob("/etc/lvm/archive/" + group + "_*")
		for _, f := range append(files, "/etc/lvm/backup/"+group) {
			os.Remove(f)
		}
	})
	write := func(plan string) {
		t.Helper()
		text := fmt.Sprintf(`portals: [{listen: "%s"}]
admin: {socket: %s, metrics: "%s"}
volumes:
  - {name: data, type: lvm, vg: %s, lv: data, devices: [%s], size: 16MiB, create: true, pool: pool, pool_size: 16MiB%s}
targets: [{iqn: "iqn.2026-11.softiser:lvm", luns: [{lun: 0, volume: data}]}]
`, portal, socket, metrics, group, filepath.Join(dir, "a.img"), plan)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// names are those of the snapshots; want waits until there are so many.
	names := func() []string {
		_, out := command(t, "lvm", "--socket", socket, "lvs", "--noheadings", "-o", "lv_name", "-S", "origin=data", group)
		return strings.Fields(out)
	}
	want := func(n int, what string) []string {
		t.Helper()
		await.True(t, what, func() bool { return len(names()) == n })
		return names()
	}
	lvm := func(args ...string) {
		t.Helper()
		if code, out := command(t, append([]string{"lvm", "--socket", socket}, args...)...); code != 0 {
			t.Fatalf("%v: %s", args, out)
		}
	}

	write("")
	_, stop := start(t, "--config", file, "--log-level", "error")
	for _, old := range []string{"nightly-20200101T000000Z", "nightly-20200102T000000Z"} {
		lvm("lvcreate", "-s", "-n", old, "--addtag", "softiser.scheduled", group+"/data")
	}
	lvm("lvcreate", "-s", "-n", "nightly-20190101T000000Z", group+"/data") // a person's
	write(", snapshots: {every: 52w, keep: 2, name: nightly}")
	if code, out := command(t, "reload", "--socket", socket, "--dry-run"); code != 0 || !strings.Contains(out, "volume data snapshots") {
		t.Fatalf("exit %d, %s", code, out)
	}
	if n := len(names()); n != 3 {
		t.Fatalf("a dry run has changed something: %d snapshots", n)
	}
	if code, out := command(t, "reload", "--socket", socket); code != 0 || !strings.Contains(out, "volume data snapshots") {
		t.Fatalf("exit %d, %s", code, out)
	}
	taken := func() bool {
		_, out := command(t, "status", "--socket", socket)
		return strings.Contains(out, "data: a snapshot every 8736h0m0s, 2 of 2 kept, the last nightly-20")
	}
	await.True(t, "status tells of the snapshot", taken)
	now := want(3, "the oldest has gone")
	if all := strings.Join(now, " "); strings.Contains(all, "20200101T") || !strings.Contains(all, "20190101T") || !strings.Contains(all, "20200102T") {
		t.Errorf("there are %s", all)
	}
	body := scrape(t, metrics)
	for _, line := range []string{`snapshots_total{result="ok",volume="data"} 1`, `snapshots_total{result="failed",volume="data"} 0`, `snapshots_kept{volume="data"} 2`, `snapshot_last_timestamp_seconds{volume="data"} 1.`} {
		if !strings.Contains(body, "iser_target_"+line) {
			t.Errorf("no metric %s", line)
		}
	}
	if code := stop(); code != 0 {
		t.Errorf("serve ended with %d", code)
	}
	_, stop = start(t, "--config", file, "--log-level", "error")
	await.True(t, "status tells of the snapshots that there are", taken)
	if after := names(); strings.Join(after, " ") != strings.Join(now, " ") {
		t.Errorf("after a restart there are %v, before it %v", after, now)
	}
	if code := stop(); code != 0 {
		t.Errorf("serve ended with %d", code)
	}
}
