package registry

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"softiser/config"
	"softiser/lvm"
	"softiser/lvm/vg"
)

// What a group has and serve refuses is found beforehand.
func TestProbeLogicalVolumes(t *testing.T) {
	disk := filepath.Join(t.TempDir(), "disk")
	m := &lvm.Manager{Config: lvm.Config{Config: vg.Config{LockDir: "-", ArchiveDir: "-", BackupDir: "-"}}}
	d, err := m.Open(lvm.Spec{VG: "vg", LV: "thin", Devices: []string{disk}, DeviceSize: 96 << 20, Size: 16 << 20, Pool: "pool", PoolSize: 16 << 20})
	if err == nil {
		err = errors.Join(d.Close(), m.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	for lv, want := range map[string]string{"thin": "", "pool": "no content", "pool_tmeta": "part of another volume", "none": "not found"} {
		_, err := Probe(config.Volume{Name: "v", Type: config.VolumeLVM, VG: "vg", LV: lv, Devices: []string{disk}}, func(config.Volume) bool { return false })
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", lv, err, want)
		}
	}
}
