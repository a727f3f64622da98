package lvm

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"softiser/blockdev"
	"softiser/internal/race"
	"softiser/lvm/internal/lvmtest"
	"softiser/lvm/internal/ondisk"
	"softiser/lvm/meta"
	"softiser/lvm/vg"
)

// crashBase is a group with something of everything: pv0 to pv2 are in it, pv2
// is empty, and /d3 is a disk that could join.
type crashBase struct {
	disks    []*lvmtest.Disk
	contents map[ondisk.UUID][]byte
}

func newCrashBase(t *testing.T) *crashBase {
	b := &crashBase{contents: map[ondisk.UUID][]byte{}}
	devs := map[string]blockdev.Device{}
	for i := range 3 {
		b.disks = append(b.disks, lvmtest.New(8<<20))
		devs[fmt.Sprintf("/d%d", i)] = b.disks[i]
	}
	g, _ := groupOn(t, devs)
	both := []vg.Range{{PV: "pv0"}, {PV: "pv1"}}
	must(t, g.Create(CreateOptions{Name: "lin", Extents: 12, From: both}, "lvcreate"))
	must(t, g.Create(CreateOptions{Name: "str", Extents: 8, Stripes: 2, From: both}, "lvcreate"))
	must(t, g.CreatePool(PoolOptions{Name: "p", Extents: 40, ErrorWhenFull: true, From: both}, "lvcreate"))
	must(t, g.CreateThin(bg, ThinOptions{Pool: "p", Name: "t", Extents: 16}, "lvcreate"))
	write := func(name string, seed byte) {
		v := volume(t, g, name)
		for off := int64(0); off+4096 <= v.Info().Size; off += 3 * 4096 {
			_, err := v.WriteAt(bytes.Repeat([]byte{seed, byte(off >> 12), 1, 2}, 1024), off)
			must(t, err)
		}
		must(t, v.Close())
	}
	for i, n := range []string{"lin", "str", "t"} {
		write(n, byte(10+i))
	}
	must(t, g.Snapshot(bg, SnapshotOptions{Origin: "lin", Name: "s", Extents: 16, From: both}, "lvcreate"))
	must(t, g.CreateThin(bg, ThinOptions{Name: "ts", Origin: "t", NoSkip: true}, "lvcreate"))
	for i, n := range []string{"lin", "t"} {
		write(n, byte(20+i))
	}
	for _, n := range []string{"lin", "str", "s", "t", "ts"} {
		v := volume(t, g, n)
		p := make([]byte, v.Info().Size)
		_, err := v.ReadAt(p, 0)
		must(t, err)
		must(t, v.Close())
		b.contents[g.Metadata().LV(n).ID] = p
	}
	must(t, g.Close())
	b.disks = append(b.disks, lvmtest.New(8<<20))
	return b
}

// openOn opens the group on the first n of these disks; the others can be added.
func (b *crashBase) openOn(t *testing.T, disks []*lvmtest.Disk, n int) (*Group, error) {
	devs := map[string]blockdev.Device{}
	var paths []string
	for i, d := range disks {
		p := fmt.Sprintf("/d%d", i)
		devs[p], paths = d, append(paths, p)
	}
	cfg := testConfig(t, devs)
	cfg.ArchiveDir, cfg.BackupDir, cfg.LockDir = "-", "-", "-"
	return Open(cfg, paths[:n], "vg0")
}

// state is what a command may change in a group.
func state(v *meta.VG) string {
	var b strings.Builder
	for _, pv := range v.PVs {
		fmt.Fprintf(&b, "%s %d; ", pv.Name, pv.PECount)
	}
	for _, lv := range v.LVs {
		fmt.Fprintf(&b, "%s %d %v; ", lv.Name, lv.Extents(), lv.Tags)
	}
	return b.String()
}

// compare reads the volumes that were there before.
func (b *crashBase) compare(t *testing.T, g *Group) {
	t.Helper()
	for _, lv := range g.Metadata().LVs {
		want := b.contents[lv.ID]
		if want == nil {
			continue
		}
		v, err := g.Volume(lv.Name)
		must(t, err)
		want = want[:min(int64(len(want)), v.Info().Size)]
		same(t, v, want, lv.Name)
		must(t, v.Close())
	}
}

// othersAgree has Debian's tools read what is on the disks, where they are
// installed: thin_check the pool's metadata, pvck the text of each disk. To the race
// detector they are nothing.
func othersAgree(t *testing.T, g *Group, disks []*lvmtest.Disk) {
	t.Helper()
	if race.Enabled {
		return
	}
	tool := func(name string, dev blockdev.Device, want string, args ...string) {
		bin, err := exec.LookPath(name)
		if err != nil {
			return
		}
		p := make([]byte, dev.Info().Size)
		_, err = dev.ReadAt(p, 0)
		must(t, err)
		file := filepath.Join(t.TempDir(), name)
		must(t, os.WriteFile(file, p, 0o600))
		if out, err := exec.Command(bin, append(args, file)...).CombinedOutput(); err != nil || !strings.Contains(string(out), want) {
			t.Fatalf("%s: %v\n%s", name, err, out)
		}
	}
	v := volume(t, g, "p_tmeta")
	tool("thin_check", v, "")
	must(t, v.Close())
	for _, d := range disks {
		tool("pvck", d, "later {", "--dump", "metadata")
	}
}

// TestCommandsCrash cuts the power at every write of every command that changes
// a group, while volumes are in use: what is found is the group as it was or as
// it shall be, with every volume's content, it can be changed again, and lvm2's tools agree.
func TestCommandsCrash(t *testing.T) {
	base := newCrashBase(t)
	for _, c := range []struct {
		name string
		do   func(g *Group) error
	}{
		{"lvcreate", func(g *Group) error { return g.Create(CreateOptions{Name: "n", Extents: 4}, "x") }},
		{"lvcreate -i2", func(g *Group) error { return g.Create(CreateOptions{Name: "n", Extents: 4, Stripes: 2}, "x") }},
		{"lvcreate -s", func(g *Group) error {
			return g.Snapshot(bg, SnapshotOptions{Origin: "lin", Name: "n", Extents: 4}, "x")
		}},
		{"lvcreate -T", func(g *Group) error { return g.CreatePool(PoolOptions{Name: "n", Extents: 4}, "x") }},
		{"lvcreate -V", func(g *Group) error { return g.CreateThin(bg, ThinOptions{Pool: "p", Name: "n", Extents: 4}, "x") }},
		{"lvcreate -s of a thin volume", func(g *Group) error {
			return g.CreateThin(bg, ThinOptions{Origin: "t", Name: "n", NoSkip: true}, "x")
		}},
		{"lvextend", func(g *Group) error { return g.Extend("str", ExtendOptions{Extents: 12}, "x") }},
		{"lvextend of an origin", func(g *Group) error { return g.Extend("lin", ExtendOptions{Extents: 20}, "x") }},
		{"lvextend of a store", func(g *Group) error { return g.Extend("s", ExtendOptions{Extents: 20}, "x") }},
		{"lvextend of a thin volume", func(g *Group) error { return g.Extend("t", ExtendOptions{Extents: 32}, "x") }},
		{"lvextend of a pool", func(g *Group) error { return g.Extend("p", ExtendOptions{Extents: 48}, "x") }},
		{"lvextend --poolmetadatasize", func(g *Group) error { return g.ExtendPoolMetadata("p", 40, "x") }},
		{"lvreduce", func(g *Group) error { return g.Reduce(bg, "str", 4, "x") }},
		{"lvreduce of a thin volume", func(g *Group) error { return g.Reduce(bg, "t", 8, "x") }},
		{"lvremove", func(g *Group) error { return g.Remove(bg, "str", "x") }},
		{"lvremove of a snapshot", func(g *Group) error { return g.Remove(bg, "s", "x") }},
		{"lvremove of a thin snapshot", func(g *Group) error { return g.Remove(bg, "ts", "x") }},
		{"lvrename", func(g *Group) error { return g.Rename("lin", "n", "x") }},
		{"lvchange", func(g *Group) error {
			return g.Change("lin", func(lv *meta.LV) error { lv.Tags = []string{"tag"}; return nil }, "x")
		}},
		{"vgcfgrestore", func(g *Group) error {
			return g.VG(func(x *vg.Group) error {
				old := x.VG.Clone()
				old.RemoveLV(old.LV("str"))
				return x.Restore(old, "x")
			})
		}},
		{"vgextend", func(g *Group) error { return g.AddDisks([]string{"/d3"}, vg.PVOptions{}, "x") }},
		{"vgreduce", func(g *Group) error {
			return g.VG(func(x *vg.Group) error { return x.Reduce([]*meta.PV{x.VG.PV("pv2")}, "x") })
		}},
		{"pvresize", func(g *Group) error {
			return g.VG(func(x *vg.Group) error { return x.ResizePV(x.VG.PV("pv2"), 6<<20, "x") })
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var before, after string
			for _, victim := range []int{0, 2, 3} {
				for cut := 0; ; cut++ {
					if testing.Short() && cut%6 > 1 {
						continue
					}
					disks := make([]*lvmtest.Disk, len(base.disks))
					for i, d := range base.disks {
						disks[i] = d.Clone()
					}
					g, err := base.openOn(t, disks, 3)
					must(t, err)
					var used []*Volume
					for _, n := range []string{"lin", "t"} {
						used = append(used, volume(t, g, n))
					}
					before = state(g.Metadata())
					for i, d := range disks {
						if i != victim {
							disks[victim].Tie(d)
						}
					}
					if cut > 0 { // the first time to see what it shall be
						disks[victim].CutAfter(cut)
					}
					err = c.do(g)
					if cut == 0 {
						must(t, err)
						if after = state(g.Metadata()); after == before {
							t.Fatal("the command changes nothing")
						}
					}
					r := rand.New(rand.NewPCG(uint64(cut), uint64(victim)))
					crashed := make([]*lvmtest.Disk, len(disks))
					for i, d := range disks {
						crashed[i] = d.Crash(r)
					}
					cutOff := err != nil
					for _, v := range used {
						v.Close() // on dead disks; nothing of it counts
					}
					g.Close()
					h, err := base.openOn(t, crashed, 4)
					if err != nil {
						t.Fatalf("disk %d, cut %d: %v", victim, cut, err)
					}
					if is := state(h.Metadata()); is != after && (is != before || !cutOff) {
						t.Fatalf("disk %d, cut %d, error %v: found\n%s\nwas\n%s\nshall be\n%s", victim, cut, cutOff, is, before, after)
					}
					base.compare(t, h)
					must(t, h.Create(CreateOptions{Name: "later", Extents: 1}, "x"))
					if victim == 0 && cut%6 == 1 {
						othersAgree(t, h, crashed[:2])
					}
					must(t, h.Close())
					if cut > 0 && !cutOff {
						break
					}
				}
			}
		})
	}
}
