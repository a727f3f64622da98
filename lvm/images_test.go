package lvm

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestImages reads disks that lvm2 wrote and compares every volume with the
// checksums that the kernel gave: LVM_IMAGES names a folder with disk*.img and
// sums ("SHA256  /dev/VG/LV" lines), as interop/lvm/exchange.sh leaves them.
func TestImages(t *testing.T) {
	dir := os.Getenv("LVM_IMAGES")
	if dir == "" {
		t.Skip("LVM_IMAGES names no folder with disks made by lvm2")
	}
	cfg, tmp := fileConfig(t)
	disks, _ := filepath.Glob(filepath.Join(dir, "disk*.img"))
	var copies []string
	for _, d := range disks {
		c := filepath.Join(tmp, filepath.Base(d))
		b, err := os.ReadFile(d)
		must(t, err)
		must(t, os.WriteFile(c, b, 0o600))
		copies = append(copies, c)
	}
	sums, err := os.ReadFile(filepath.Join(dir, "sums"))
	must(t, err)
	var g *Group
	for _, line := range strings.Split(strings.TrimSpace(string(sums)), "\n") {
		want, path, _ := strings.Cut(line, "  ")
		parts := strings.Split(strings.TrimSpace(path), "/")
		group, lv := parts[2], parts[3]
		if g == nil {
			g, err = Open(cfg, copies, group)
			must(t, err)
			defer g.Close()
		}
		v, err := g.Volume(lv)
		if err != nil {
			t.Errorf("%s: %v", lv, err)
			continue
		}
		h := sha256.New()
		_, err = io.Copy(h, io.NewSectionReader(v, 0, v.Info().Size))
		must(t, err)
		must(t, v.Close())
		if got := hex.EncodeToString(h.Sum(nil)); got != want {
			t.Errorf("%s: %s, the kernel read %s", lv, got, want)
		} else {
			t.Logf("%s: same", lv)
		}
	}
}
