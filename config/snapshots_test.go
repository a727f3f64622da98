package config

import (
	"strings"
	"testing"
	"time"
)

const snapshotsText = `
portals: [{listen: "127.0.0.1:3260"}]
volumes:
  - {name: a, type: lvm, vg: vg, lv: a, devices: [d], VOLUME snapshots: {SNAPSHOTS}}
  - {name: b, type: lvm, vg: vg, lv: b, devices: [d], snapshots: {every: 2w, keep: 1, name: other}}
  - {name: m, type: memory, size: 1MiB}
targets: [{iqn: "iqn.2026-11.com.example:a", luns: [{lun: 0, volume: a}, {lun: 1, volume: b}, {lun: 2, volume: m}]}]
`

func snapshotsOf(volume, text string) (*Config, error) {
	return Parse([]byte(strings.NewReplacer("VOLUME", volume, "SNAPSHOTS", text).Replace(snapshotsText)), "")
}

func TestSnapshots(t *testing.T) {
	c, err := snapshotsOf("", "every: 1d, at: 02:30, keep: 24")
	if err != nil {
		t.Fatal(err)
	}
	s := c.Volumes[0].Snapshots
	if s.Every.D() != 24*time.Hour || s.Offset() != 150*time.Minute || s.Keep != 24 || c.Volumes[0].SnapshotPrefix() != "a" {
		t.Errorf("%+v", s)
	}
	if s := c.Volumes[1].Snapshots; s.Every.D() != 14*24*time.Hour || s.Offset() != 0 || c.Volumes[1].SnapshotPrefix() != "other" {
		t.Errorf("%+v", s)
	}
	for _, x := range []struct{ volume, text, want string }{
		{"", "every: 30s, keep: 1", "snapshots.every: 30s is less than 1m"},
		{"", "every: 400d, keep: 1", "more than a year"},
		{"", "every: 61500ms, keep: 1", "whole number of seconds"},
		{"", "every: often, keep: 1", "is not a duration"},
		{"", "keep: 1", "snapshots.every: missing"},
		{"", "every: 1h", "snapshots.keep: 0 must be between 1 and 4096"},
		{"", "every: 1h, keep: 5000", "snapshots.keep: 5000 must be"},
		{"", "every: 1h, keep: 1, at: 25:00", "snapshots.at: \"25:00\" is no time of the day"},
		{"", "every: 1h, keep: 1, name: a/b", "characters that LVM does not take"},
		{"", "every: 1h, keep: 1, name: -a", "characters that LVM does not take"},
		{"", "every: 1h, keep: 1, name: snapshots", "begins with snapshot, which LVM reserves"},
		{"", "every: 1h, keep: 1, name: " + strings.Repeat("x", 111), "so 110 are left"},
		{"", "every: 1h, keep: 1, name: other", "is already the prefix of snapshots in group vg"},
		{"", "every: 1h, keep: 1, size: -1", "size"},
		{"create: true, size: 1GiB,", "every: 1h, keep: 1", "snapshots.size: missing"},
		{"create: true, size: 1GiB, pool: p,", "every: 1h, keep: 1, size: 1MiB", "from its pool"},
		{"", "each: 1h", "unknown key"},
	} {
		if _, err := snapshotsOf(x.volume, x.text); err == nil || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%s %s: %v, want %q", x.volume, x.text, err, x.want)
		}
	}
	text := strings.Replace(snapshotsText, "size: 1MiB", "size: 1MiB, snapshots: {every: 1h, keep: 2}", 1)
	if _, err := Parse([]byte(strings.NewReplacer("VOLUME", "", "SNAPSHOTS", "every: 1h, keep: 1").Replace(text)), ""); err == nil || !strings.Contains(err.Error(), "are of logical volumes; m has type: memory") {
		t.Error(err)
	}
}
