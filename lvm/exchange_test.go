package lvm

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// These two tests are one side of an exchange of disks with a Linux kernel and
// lvm2 (interop/lvm): one makes a group and changes what the other side made,
// the other compares. They do nothing without a folder.

func exchangeDir(t *testing.T) (dir string, disks []string) {
	dir = os.Getenv("LVM_EXCHANGE")
	if dir == "" {
		t.Skip("LVM_EXCHANGE names no folder to exchange disks in")
	}
	for i := range 2 {
		disks = append(disks, filepath.Join(dir, fmt.Sprintf("disk%d.img", i)))
	}
	return dir, disks
}

func sum(t *testing.T, v *Volume) string {
	h := sha256.New()
	_, err := io.Copy(h, io.NewSectionReader(v, 0, v.Info().Size))
	must(t, err)
	return hex.EncodeToString(h.Sum(nil))
}

// scribble writes random data to random places of a volume.
func scribble(t *testing.T, g *Group, name string, r *rand.Rand, writes int) {
	v := volume(t, g, name)
	for range writes {
		p := make([]byte, 512*(1+r.IntN(400)))
		for i := range p {
			p[i] = byte(r.Uint32())
		}
		off := int64(r.IntN(int(v.Info().Size)-len(p))) &^ 511
		_, err := v.WriteAt(p, off)
		must(t, err)
	}
	must(t, v.Close())
}

// TestExchangeMake makes everything on blank disks, or, when the disks hold a
// group already, checks the sums of the other side and changes it. It leaves
// new sums.
func TestExchangeMake(t *testing.T) {
	dir, disks := exchangeDir(t)
	cfg, _ := fileConfig(t)
	r := rand.New(rand.NewPCG(uint64(len(os.Getenv("LVM_ROUND"))), 42))
	if _, err := os.Stat(disks[0]); err != nil {
		for _, d := range disks {
			must(t, makeFile(d, 256<<20))
		}
		m := &Manager{Config: cfg}
		v, err := m.Open(Spec{VG: "vgx", LV: "lin", Devices: disks, Size: 20 << 20})
		must(t, err)
		must(t, v.Close())
		g := m.Group("vgx")
		must(t, g.Create(CreateOptions{Name: "str", Extents: 6, Stripes: 2}, "lvcreate"))
		scribble(t, g, "lin", r, 200)
		scribble(t, g, "str", r, 200)
		must(t, g.Snapshot(bg, SnapshotOptions{Origin: "lin", Name: "snap", Extents: 4}, "lvcreate"))
		must(t, g.Snapshot(bg, SnapshotOptions{Origin: "lin", Name: "snap2", Extents: 4, Chunk: 16384}, "lvcreate"))
		must(t, g.CreatePool(PoolOptions{Name: "pool", Extents: 16}, "lvcreate"))
		must(t, g.CreateThin(bg, ThinOptions{Pool: "pool", Name: "thin1", Extents: 25}, "lvcreate"))
		scribble(t, g, "thin1", r, 60)
		must(t, g.CreateThin(bg, ThinOptions{Name: "thin2", Origin: "thin1", NoSkip: true}, "lvcreate"))
		must(t, m.Close())
	}
	g, err := Open(cfg, disks, "vgx")
	must(t, err)
	compareSums(t, g, dir)
	var names []string
	for _, lv := range g.Metadata().LVs {
		v := g.Metadata()
		if v.Shown(lv) && lv.Segments[0].Type != "thin-pool" {
			names = append(names, lv.Name)
		}
	}
	for _, n := range names {
		scribble(t, g, n, r, 10)
	}
	if g.Metadata().LV("snap") != nil && os.Getenv("LVM_ROUND") == "x" {
		done, err := g.Merge(bg, "snap", "lvconvert")
		must(t, err)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		must(t, g.Extend("str", ExtendOptions{Extents: 8}, "lvextend"))
	}
	out := ""
	for _, n := range names {
		v, err := g.Volume(n)
		if err != nil {
			continue // merged
		}
		out += sum(t, v) + "  /dev/vgx/" + n + "\n"
		must(t, v.Close())
	}
	must(t, g.Close())
	must(t, os.WriteFile(filepath.Join(dir, "sums"), []byte(out), 0o600))
}

func compareSums(t *testing.T, g *Group, dir string) {
	b, err := os.ReadFile(filepath.Join(dir, "sums"))
	if err != nil {
		return
	}
	for _, line := range strings.Split(strings.TrimSpace(string(b)), "\n") {
		want, path, _ := strings.Cut(line, "  ")
		name := filepath.Base(path)
		v, err := g.Volume(name)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got := sum(t, v); got != want {
			t.Errorf("%s: read %s, the other side %s", name, got, want)
		} else {
			t.Logf("%s: same", name)
		}
		must(t, v.Close())
	}
}
