package lvm

import (
	"fmt"
	"slices"
	"time"

	"softiser/blockdev"
	"softiser/lvm/internal/ondisk"
	"softiser/lvm/meta"
	"softiser/lvm/vg"
)

// metadata is the part of a Group that knows its text: it is read from group.VG, and
// changed by committing a copy. The group's mu guards it.
type metadata struct {
	cfg    *Config
	group  *vg.Group // on its disks
	closed bool      // nothing is committed any more

	committed func() // is told after each commit
}

// bytes is the size of a number of extents.
func (md *metadata) bytes(extents uint64) int64 {
	return int64(extents*md.group.VG.ExtentSize) * ondisk.SectorSize
}

// commit makes next the metadata.
func (md *metadata) commit(next *meta.VG, why string) error {
	for _, pv := range md.group.VG.PVs {
		if _, err := md.group.Disk(pv); err != nil {
			return fmt.Errorf("volume group %q is not changed while a disk is away: %w", next.Name, err)
		}
	}
	if err := md.keepsBlocks(next); err != nil {
		return err
	}
	if err := md.endsStripes(next); err != nil {
		return err
	}
	return md.commitBy(md.group.Commit, next, why)
}

// endsStripes refuses next if a volume could not be opened by it, because a segment ends within its
// stripes: lvm2 makes volumes whose stripes do not divide an extent.
func (md *metadata) endsStripes(next *meta.VG) error {
	for _, lv := range next.LVs {
		for _, s := range lv.Segments {
			if len(s.Stripes) < 2 || s.AreaLen()*next.ExtentSize%s.StripeSize == 0 {
				continue
			}
			was := md.byID(lv.ID)
			if was == nil || !slices.ContainsFunc(was.Segments, s.Same) {
				return fmt.Errorf("logical volume %s/%s: %d extents of %d sectors would end within a stripe of %d", next.Name, lv.Name, s.AreaLen(), next.ExtentSize, s.StripeSize)
			}
		}
	}
	return nil
}

// keepsBlocks refuses next if a volume would have blocks of another size in it, by being on other disks:
// what is on it, and who uses it, counts in those that it has.
func (md *metadata) keepsBlocks(next *meta.VG) error {
	sizes := map[string]int{} // by the name of the PV, which is the same in both
	mixed := false
	for _, pv := range next.PVs {
		if d := md.group.Disks[pv.ID]; d != nil {
			sizes[pv.Name] = d.Dev.Info().BlockSize
			mixed = mixed || sizes[pv.Name] != sizes[next.PVs[0].Name]
		}
	}
	if !mixed {
		return nil
	}
	blocks := func(lv *meta.LV) (n int) {
		for _, s := range lv.Segments {
			for _, a := range s.Stripes {
				n = max(n, sizes[a.Name])
			}
		}
		return n
	}
	was := map[ondisk.UUID]int{}
	for _, lv := range md.group.VG.LVs {
		was[lv.ID] = blocks(lv)
	}
	for _, lv := range next.LVs {
		if w, is := was[lv.ID], blocks(lv); w != 0 && is != w {
			return fmt.Errorf("logical volume %s/%s has blocks of %d bytes, and would have those of %d on other disks: name disks to use that are like its own", next.Name, lv.Name, w, is)
		}
	}
	return nil
}

func (md *metadata) commitBy(commit func(*meta.VG, string) error, next *meta.VG, why string) error {
	if md.closed {
		return blockdev.ErrClosed
	}
	if next.Seqno != md.group.VG.Seqno {
		return fmt.Errorf("volume group %q has changed since this change of it began: repeat it", next.Name)
	}
	notes := len(md.group.Notices)
	err := commit(next, why)
	for _, n := range md.group.Notices[notes:] {
		md.cfg.notice("%s", n)
	}
	if err == nil {
		md.committed()
	}
	return err
}

func (md *metadata) byID(id ondisk.UUID) *meta.LV {
	for _, lv := range md.group.VG.LVs {
		if lv.ID == id {
			return lv
		}
	}
	return nil
}

// poolOf is the pool of a thin volume, "" for other volumes.
func (md *metadata) poolOf(name string) string {
	if lv := md.group.VG.LV(name); lv != nil && len(lv.Segments) == 1 && lv.Segments[0].Type == meta.Thin {
		return lv.Segments[0].Pool
	}
	return ""
}

// newLV makes an LV of that name, or of the first one that is free: lvol0, lvol1, …
func (md *metadata) newLV(v *meta.VG, name string) (*meta.LV, error) {
	for i := 0; name == ""; i++ {
		if n := fmt.Sprintf("lvol%d", i); v.LV(n) == nil {
			name = n
		}
	}
	if err := vg.CheckLVName(name); err != nil {
		return nil, err
	}
	if v.LV(name) != nil {
		return nil, fmt.Errorf("logical volume %s/%s exists already", v.Name, name)
	}
	if v.MaxLV != 0 && uint64(len(v.LVs)) >= v.MaxLV {
		return nil, fmt.Errorf("volume group %q takes at most %d logical volumes", v.Name, v.MaxLV)
	}
	return md.bareLV(name, true), nil
}

func (md *metadata) bareLV(name string, visible bool) *meta.LV {
	now := time.Now
	if md.cfg.Now != nil {
		now = md.cfg.Now
	}
	lv := &meta.LV{Name: name, ID: ondisk.NewUUID(), Status: []string{"READ", "WRITE"}, Created: now().Unix(), Host: md.cfg.HostName()}
	lv.SetStatus("VISIBLE", visible)
	return lv
}
