package lvm

import (
	"bytes"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"softiser/lvm/vg"
)

// fileConfig keeps everything that tests write below their own directory.
func fileConfig(t testing.TB) (Config, string) {
	dir := t.TempDir()
	return Config{Config: vg.Config{LockDir: dir + "/lock", ArchiveDir: dir + "/archive", BackupDir: dir + "/backup"}}, dir
}

func TestManager(t *testing.T) {
	cfg, dir := fileConfig(t)
	spec := Spec{VG: "vg0", LV: "data", Devices: []string{filepath.Join(dir, "a.img"), filepath.Join(dir, "b.img")}, Size: 20 << 20, DeviceSize: 64 << 20}
	for round := range 2 {
		m := &Manager{Config: cfg}
		d, err := m.Open(spec)
		must(t, err)
		other := spec
		other.LV = "more"
		e, err := m.Open(other)
		must(t, err)
		p := []byte(strings.Repeat("x", 512))
		if round == 0 {
			if _, err := d.WriteAt(p, 4096); err != nil {
				t.Fatal(err)
			}
		}
		got := make([]byte, 512)
		if _, err := d.ReadAt(got, 4096); err != nil || !bytes.Equal(got, p) {
			t.Fatal("content", err)
		}
		if d.Info().Size != 20<<20 {
			t.Fatal(d.Info().Size)
		}
		must(t, d.Close())
		must(t, e.Close())
		must(t, m.Close())
		spec.Size = 0 // the second time everything is there
	}
	if _, err := (&Manager{Config: cfg}).Open(Spec{VG: "nope", LV: "x", Devices: spec.Devices}); err == nil {
		t.Fatal("a group that does not exist was opened")
	}
	v, err := OpenVolume(cfg, spec.Devices, "vg0", "more")
	must(t, err)
	must(t, v.Close())
	if pvck, err := exec.LookPath("pvck"); err == nil {
		out, err := exec.Command(pvck, "--dump", "metadata", spec.Devices[0]).CombinedOutput()
		if err != nil || !strings.Contains(string(out), "data {") {
			t.Fatalf("pvck: %v\n%s", err, out)
		}
	}
}
