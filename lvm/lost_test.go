package lvm

import (
	"bytes"
	"errors"
	"testing"

	"softiser/blockdev"
	"softiser/blockdev/faulty"
	"softiser/lvm/internal/lvmtest"
	"softiser/lvm/meta"
	"softiser/lvm/vg"
)

// TestLostSnapshotIsMarked: a snapshot is lost because its disk fails, which
// cannot even take down that it is. After a restart it is invalid all the same:
// what has been written to the origin since is not in it. As long as nobody can
// take it down, nothing is written to the origin.
func TestLostSnapshotIsMarked(t *testing.T) {
	broken := errors.New("the disk is broken")
	for _, everything := range []bool{false, true} { // that could take it down fails
		origin, store := faulty.New(lvmtest.New(16<<20), 1), faulty.New(lvmtest.New(16<<20), 2)
		g, cfg := groupOn(t, map[string]blockdev.Device{"/d0": origin, "/d1": store})
		must(t, g.Create(CreateOptions{Name: "o", Extents: 4, From: []vg.Range{{PV: "pv0"}}}, "lvcreate"))
		old := bytes.Repeat([]byte{1}, 65536)
		o := volume(t, g, "o")
		_, err := o.WriteAt(old, 0)
		must(t, err)
		must(t, g.Snapshot(bg, SnapshotOptions{Origin: "o", Name: "s", Extents: 8, From: []vg.Range{{PV: "pv1"}}}, "lvcreate"))

		fail := faulty.Rule{Op: faulty.Write | faulty.Flush | faulty.Discard, Err: broken}
		store.SetRules(fail)
		if everything {
			inText := fail // the metadata lies before the extents
			inText.Off, inText.Len = 0, int64(g.Metadata().PVs[0].PEStart)*512
			origin.SetRules(inText)
			var l blockdev.Lease
			_, werr := o.WriteAt(bytes.Repeat([]byte{2}, 4096), 0)
			lerr := o.LeaseWrite(&l, 4096, 4096, blockdev.Wait)
			zerr := o.WriteZeroes(8192, 4096, true)
			for _, err := range []error{werr, lerr, zerr, o.LeaseWrite(&l, 4096, 4096, blockdev.NoWait)} {
				if err == nil {
					t.Error("the origin takes writes although nobody knows that the snapshot is lost")
				}
			}
			same(t, o, old, "the origin")
			origin.SetRules()
		}
		_, err = o.WriteAt(bytes.Repeat([]byte{2}, 8192), 0)
		must(t, err)
		must(t, o.Flush())
		o.Close()
		g.Close()
		store.SetRules()

		g, err = Open(cfg, []string{"/d0", "/d1"}, "vg0")
		must(t, err)
		s := volume(t, g, "s")
		if _, err := s.ReadAt(make([]byte, 4096), 0); !errors.Is(err, blockdev.ErrMedium) {
			t.Errorf("the snapshot is read after the restart: %v", err)
		}
		must(t, s.Close())
		// From now on its store says so itself, to lvm2 as well.
		must(t, g.Change("s", func(lv *meta.LV) error { lv.SetTag(lostTag, false); return nil }, "lvchange"))
		g = reopen(t, g, cfg, 2)
		s = volume(t, g, "s")
		if _, err := s.ReadAt(make([]byte, 4096), 0); !errors.Is(err, blockdev.ErrMedium) {
			t.Errorf("the store does not say that it is lost: %v", err)
		}
		must(t, s.Close())
		must(t, g.Remove(bg, "s", "lvremove"))
		must(t, g.Close())
	}
}
