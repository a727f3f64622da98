package attach

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"softiser/initiator/ublk"
)

func TestParseDevice(t *testing.T) {
	for dev, want := range map[string]struct {
		kind  deviceKind
		index int
	}{
		"": {deviceNBD, -1}, "auto": {deviceNBD, -1}, "/dev/nbd": {deviceNBD, -1}, "/dev/nbd12": {deviceNBD, 12},
		"none": {deviceNone, -1}, "ublk": {deviceUblk, -1}, "/dev/ublkb0": {deviceUblk, 0},
	} {
		if kind, index, err := parseDevice(dev); kind != want.kind || index != want.index || err != nil {
			t.Errorf("%q: %q %d %v", dev, kind, index, err)
		}
	}
	for _, dev := range []string{"nbd", "/dev/nbd-1", "/dev/nbd01", "/dev/nbd0p1", "/dev/ublkb", "/dev/ublkc0", "/dev/ublkb1x", "/dev/sda"} {
		if _, _, err := parseDevice(dev); err == nil || !strings.Contains(err.Error(), dev) {
			t.Errorf("%q: %v", dev, err)
		}
	}
}

// The next process that attaches a volume knows the device and the session of the former;
// others have their own.
func TestIdentity(t *testing.T) {
	dir := t.TempDir()
	const url = "iser://h:3260/iqn.2026-11.x:y/0"
	if markOf(dir, url) != markOf(dir, url) || ISID(dir, url) != ISID(dir, url) {
		t.Error("another mark or ISID for the same attachment")
	}
	rel, err := filepath.Rel(mustGetwd(t), dir)
	if err != nil || markOf(rel, url) != markOf(dir, url) {
		t.Errorf("another mark for the same folder, %v", err)
	}
	if markOf(dir, url) == 0 || ISID(dir, url)[0] != 0x80 {
		t.Errorf("mark %#x, ISID %x", markOf(dir, url), ISID(dir, url))
	}
	for _, other := range [][2]string{{dir + "x", url}, {dir, url + "1"}} {
		if markOf(other[0], other[1]) == markOf(dir, url) || ISID(other[0], other[1]) == ISID(dir, url) {
			t.Errorf("the same mark or ISID for %v", other)
		}
	}
}

func mustGetwd(t *testing.T) string {
	d, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// Where there is no driver, attaching says so and leaves nothing behind.
func TestNoUblkDriver(t *testing.T) {
	if _, err := os.Stat(ublk.ControlPath); err == nil {
		t.Skip("this host has " + ublk.ControlPath)
	}
	l := &fakeLUN{data: make([]byte, 1<<20)}
	opt := options(t, l)
	opt.Device = "ublk"
	if _, _, err := Attach(t.Context(), opt); !errors.Is(err, ublk.ErrNoDriver) || !strings.Contains(err.Error(), "modprobe ublk_drv") {
		t.Errorf("attach: %v", err)
	}
	if _, closed := l.counts(); closed != 1 {
		t.Errorf("the volume was closed %d times", closed)
	}
	if left, _ := filepath.Glob(filepath.Join(opt.Dir, "*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// The record of a killed process whose device is gone is removed, as any other.
func TestKilledRecordWithoutDevice(t *testing.T) {
	dir := t.TempDir()
	path := recordPath(dir, "iser://h/x/0")
	if err := os.WriteFile(path, []byte(`{"url":"iser://h/x/0","device":"/dev/ublkb77","pid":1}`), 0o600); err != nil {
		t.Fatal(err)
	}
	live, err := List(dir)
	if err != nil || len(live) != 0 {
		t.Errorf("%v, %v", live, err)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the record is there: %v", err)
	}
}

// TestRunDirOfRoot: by default root has the folder of the units, and none that is another user's.
func TestRunDirOfRoot(t *testing.T) {
	t.Setenv("ISER_RUN_DIR", "")
	read := func(name string) string {
		b, err := os.ReadFile("../../packaging/systemd/" + name)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	dir := runDirOf(0)
	if unit := read("iser-attach@.service"); !strings.Contains(unit, "\nRuntimeDirectory="+strings.TrimPrefix(dir, "/run/")+"\n") {
		t.Errorf("%s is not that of the units", dir)
	}
	if others := read("softiser.tmpfiles"); strings.Contains(others, " "+dir+" ") {
		t.Errorf("%s is another user's:\n%s", dir, others)
	}
}
