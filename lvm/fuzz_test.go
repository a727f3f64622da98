package lvm

import (
	"fmt"
	"testing"

	"softiser/blockdev"
	"softiser/lvm/internal/lvmtest"
	"softiser/lvm/internal/ondisk"
	"softiser/lvm/meta"
)

// FuzzGroup opens groups whose text anybody may have written, with right checksums, and uses every
// volume of them: whatever they stand on is given back.
func FuzzGroup(f *testing.F) {
	g, _ := newGroup(f, 2, 8<<20)
	must(f, g.Create(CreateOptions{Name: "lin", Extents: 8}, "lvcreate"))
	must(f, g.Create(CreateOptions{Name: "str", Extents: 8, Stripes: 2, StripeSize: 16}, "lvcreate"))
	f.Add(g.View().VG.Text(nil), false)
	must(f, g.Snapshot(bg, SnapshotOptions{Origin: "lin", Name: "snap", Extents: 4}, "lvcreate"))
	f.Add(g.View().VG.Text(nil), true)
	must(f, g.CreatePool(PoolOptions{Name: "p", Extents: 8}, "lvcreate"))
	must(f, g.CreateThin(bg, ThinOptions{Pool: "p", Name: "thin", Extents: 1000}, "lvcreate"))
	must(f, g.CreateThin(bg, ThinOptions{Name: "again", Origin: "thin"}, "lvcreate"))
	f.Add(g.View().VG.Text(nil), false)
	disks := g.disks.Disks
	must(f, g.Close())

	f.Fuzz(func(t *testing.T, text []byte, repaired bool) {
		loaded, err := meta.Load(text)
		if err != nil {
			return
		}
		devs := map[string]blockdev.Device{}
		var paths []string
		for i, d := range disks {
			c := d.Dev.(*lvmtest.Disk).Clone().Quiet()
			at := d.Label.Meta[0]
			h := ondisk.MDAHeader{Start: at.Offset, Size: at.Size, Committed: ondisk.Locn{Offset: ondisk.MDAHeaderLen, Size: uint64(len(text)), Checksum: ondisk.CRC(text)}}
			if uint64(len(text)) > h.MaxText() {
				return
			}
			if repaired && i > 0 {
				h.Committed.Checksum++ // the first is copied to this one
			}
			b := append(h.Append(nil), text...)
			b = append(b, make([]byte, 511-(len(b)+511)%512)...)
			if _, err := c.WriteAt(b, int64(at.Offset)); err != nil {
				t.Fatal(err)
			}
			p := fmt.Sprintf("/d%d", i)
			devs[p], paths = c, append(paths, p)
		}
		cfg := testConfig(t, devs)
		cfg.ArchiveDir, cfg.BackupDir, cfg.LockDir = "-", "-", "-"
		g, err := Open(cfg, paths, loaded.Name)
		if err != nil {
			return
		}
		for _, lv := range loaded.LVs {
			v, err := g.Volume(lv.Name)
			if err != nil {
				continue
			}
			p := make([]byte, min(v.Info().Size, 128<<10))
			if _, err := v.ReadAt(p, 0); err == nil {
				_, _ = v.WriteAt(p[:4096], int64(len(p))-4096)
			}
			_, _ = v.Extents(0, v.Info().Size)
			_ = v.Flush()
			if err := v.Close(); err != nil {
				t.Fatal(err)
			}
		}
		if err := g.Close(); err != nil { // volumes that are still in use
			t.Fatal(err)
		}
	})
}
