package lvm

import (
	"bytes"
	"fmt"
	"testing"

	"softiser/blockdev"
	"softiser/lvm/internal/lvmtest"
	"softiser/lvm/vg"
)

// reserved is a disk that only takes note of discards and zeroes, as a file
// system does of a range that it marks as unwritten: what was there stays.
type reserved struct{ *lvmtest.Disk }

func (reserved) Discard(off, n int64) error             { return nil }
func (reserved) WriteZeroes(off, n int64, _ bool) error { return nil }

// TestErase: what a volume holds is overwritten on its disks, wherever it lies and
// whatever the pool does with discards; what its snapshots show of it stays.
func TestErase(t *testing.T) {
	secret := bytes.Repeat([]byte("a secret of 16 b"), 65536/16)
	for _, kind := range []string{"linear", "striped", "thin passdown", "thin nopassdown", "thin ignore", "thin shared", "origin", "snapshot"} {
		t.Run(kind, func(t *testing.T) {
			devs := map[string]blockdev.Device{}
			var disks []*lvmtest.Disk
			for i := range 2 {
				disks = append(disks, lvmtest.New(16<<20))
				devs[fmt.Sprintf("/d%d", i)] = reserved{disks[i]}
			}
			g, _ := groupOn(t, devs)
			defer func() { must(t, g.Close()) }()
			name, keeper := "v", ""
			shown := func(v *Volume) []byte {
				p := make([]byte, 4*65536)
				_, err := v.ReadAt(p, 0)
				must(t, err)
				return p
			}
			write := func(v *Volume) {
				for off := int64(0); off < 4*65536; off += 65536 {
					_, err := v.WriteAt(secret, off)
					must(t, err)
				}
			}
			switch kind {
			case "linear":
				must(t, g.Create(CreateOptions{Name: "v", Extents: 8}, "lvcreate"))
			case "striped":
				must(t, g.Create(CreateOptions{Name: "v", Extents: 8, Stripes: 2}, "lvcreate"))
			case "origin", "snapshot":
				must(t, g.Create(CreateOptions{Name: "v", Extents: 8}, "lvcreate"))
				must(t, g.Snapshot(bg, SnapshotOptions{Origin: "v", Name: "s", Extents: 16}, "lvcreate"))
				if kind == "snapshot" {
					name = "s"
				}
			default:
				o := PoolOptions{Name: "p", Extents: 32, Discards: kind[5:]}
				if kind == "thin shared" {
					o.Discards = "nopassdown"
				}
				must(t, g.CreatePool(o, "lvcreate"))
				must(t, g.CreateThin(bg, ThinOptions{Pool: "p", Name: "v", Extents: 8}, "lvcreate"))
			}
			v := volume(t, g, name)
			write(v)
			if kind == "thin shared" {
				keeper = "s"
				must(t, g.CreateThin(bg, ThinOptions{Name: keeper, Origin: "v"}, "lvcreate"))
			}
			must(t, v.Erase(512, 4*65536-512)) // the first block, in parts
			must(t, v.Erase(0, 512))
			if !bytes.Equal(shown(v), make([]byte, 4*65536)) {
				t.Error("the volume still shows what it held")
			}
			must(t, v.Close())
			if keeper != "" {
				s := volume(t, g, keeper)
				if !bytes.Equal(shown(s), bytes.Repeat(secret, 4)) {
					t.Error("the snapshot has changed")
				}
				must(t, s.Close())
				return
			}
			must(t, g.VG(func(x *vg.Group) error {
				for _, d := range disks {
					p := make([]byte, d.Info().Size)
					if _, err := d.ReadAt(p, 0); err != nil {
						return err
					}
					if i := bytes.Index(p, secret[:512]); i >= 0 {
						t.Errorf("what the volume held is still on a disk, at %d", i)
					}
				}
				return nil
			}))
		})
	}
}
