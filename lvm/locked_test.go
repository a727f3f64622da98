package lvm

import (
	"testing"

	"softiser/blockdev"
	"softiser/lvm/internal/lvmtest"
)

// watchedDisk tells of reads and writes.
type watchedDisk struct {
	*lvmtest.Disk
	used func()
}

func (d *watchedDisk) ReadAt(p []byte, off int64) (int, error) {
	d.used()
	return d.Disk.ReadAt(p, off)
}

func (d *watchedDisk) WriteAt(p []byte, off int64) (int, error) {
	d.used()
	return d.Disk.WriteAt(p, off)
}

// TestGroupIsLocked: whoever opens a thin pool, for a report as well, or makes one has the group's lock.
func TestGroupIsLocked(t *testing.T) {
	disk := &watchedDisk{lvmtest.New(64 << 20), func() {}}
	m := &Manager{Config: testConfig(t, map[string]blockdev.Device{"/d0": disk})}
	devices := []string{t.TempDir() + "/none"}
	m.Config.Open = func(string) (blockdev.Device, error) { return disk, nil }
	v, err := m.Open(Spec{VG: "vg0", LV: "lin", Devices: devices, Size: 4 << 20})
	must(t, err)
	g := m.Group("vg0")
	uses := 0
	disk.used = func() {
		uses++
		if g.mu.TryLock() {
			g.mu.Unlock()
			t.Error("a disk is used, and the group is not locked")
			disk.used = func() { uses++ } // once is enough
		}
	}
	check := disk.used
	for _, tt := range []struct {
		what string
		f    func() error
	}{
		{"thin volume of a configuration", func() error {
			v, err := m.Open(Spec{VG: "vg0", LV: "thin", Devices: devices, Size: 4 << 20, Pool: "p", PoolSize: 4 << 20})
			if err == nil {
				err = v.Close()
			}
			return err
		}},
		{"PoolUsage", func() error { _, err := g.PoolUsage("p"); return err }},
		{"Mapped", func() error { _, err := g.Mapped("thin"); return err }},
	} {
		uses, disk.used = 0, check
		if err := tt.f(); err != nil || uses == 0 {
			t.Errorf("%s: %d uses, %v", tt.what, uses, err)
		}
	}
	disk.used = func() {}
	must(t, v.Close())
	must(t, m.Close())
}
