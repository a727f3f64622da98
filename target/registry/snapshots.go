package registry

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"softiser/blockdev"
	"softiser/config"
	"softiser/lvm"
	"softiser/lvm/meta"
	"softiser/target/snapshots"
)

// snapshotTag is the tag, in the metadata of a volume group, of a snapshot that was taken by a
// plan. One that has lost it is nobody's to remove but an administrator's.
const snapshotTag = "softiser.scheduled"

// TakeSnapshots takes and removes snapshots as the configuration in force says, until ctx ends.
// change is asked before each change, with what that is; an error puts it off.
func (r *Registry) TakeSnapshots(ctx context.Context, change func(what string) (end func(), err error)) {
	r.snapshots.Run(ctx, change)
}

// snapshotPlans are those of a configuration.
func snapshotPlans(c *config.Config) (all []snapshots.Plan) {
	for i := range c.Volumes {
		v := &c.Volumes[i]
		if s := &v.Snapshots; s.Every != 0 {
			all = append(all, snapshots.Plan{
				Volume: v.Name, Group: v.VG, LV: v.LV, Every: s.Every.D(), At: s.Offset(), Keep: s.Keep, Prefix: v.SnapshotPrefix(), Size: int64(s.Size),
			})
		}
	}
	return all
}

// snapshotStore has the snapshots of logical volumes in groups that are open.
type snapshotStore struct {
	lvs *lvm.Manager
	// volumes are those of the configuration in force: a snapshot may be one of them, whether
	// it is open or not.
	volumes func() []config.Volume
}

// group returns the group of a volume that is open.
func (s snapshotStore) group(p snapshots.Plan) (*lvm.Group, error) {
	g := s.lvs.Group(p.Group)
	if g == nil || !g.IsOpen(p.LV) {
		return nil, fmt.Errorf("%s/%s is not open: %w", p.Group, p.LV, snapshots.ErrAway)
	}
	return g, nil
}

// List implements snapshots.Store. A snapshot is the plan's own if it has the tag, a name of
// the plan, and the plan's volume for its origin.
func (s snapshotStore) List(p snapshots.Plan) (all []snapshots.Snapshot, err error) {
	g, err := s.group(p)
	if err != nil {
		return nil, err
	}
	v := g.Metadata()
	for _, lv := range v.LVs {
		taken, ours := p.Taken(lv.Name)
		origin, merging := originOf(v, lv)
		if !ours || origin != p.LV || !slices.Contains(lv.Tags, snapshotTag) {
			continue
		}
		x := snapshots.Snapshot{Name: lv.Name, Taken: taken}
		i := slices.IndexFunc(s.volumes(), func(c config.Volume) bool { return c.VG == p.Group && c.LV == lv.Name })
		switch {
		case merging:
			x.Held = "it is being merged into " + origin
		case g.IsOpen(lv.Name):
			x.Held = "it is open"
		case i >= 0:
			x.Held = "it is a volume of the configuration"
		}
		all = append(all, x)
	}
	return all, nil
}

// originOf is what a logical volume is a snapshot of, "" if it is none.
func originOf(v *meta.VG, lv *meta.LV) (name string, merging bool) {
	if _, seg := v.SnapshotSegment(lv.Name); seg != nil {
		return seg.Origin, seg.Merging
	}
	if len(lv.Segments) == 1 && lv.Segments[0].Type == meta.Thin {
		return lv.Segments[0].Origin, false
	}
	return "", false
}

// Take implements snapshots.Store, as lvcreate -s does.
func (s snapshotStore) Take(ctx context.Context, p snapshots.Plan, name string) error {
	g, err := s.group(p)
	if err != nil {
		return err
	}
	v := g.Metadata()
	lv := v.LV(p.LV)
	if lv == nil {
		return fmt.Errorf("there is no %s/%s any more", p.Group, p.LV)
	}
	why, tags := "scheduled snapshot of "+p.LV, []string{snapshotTag}
	if len(lv.Segments) == 1 && lv.Segments[0].Type == meta.Thin {
		return g.CreateThin(ctx, lvm.ThinOptions{Name: name, Origin: p.LV, Tags: tags}, why)
	}
	if p.Size == 0 {
		return fmt.Errorf("%s/%s is no thin volume: say in snapshots.size how much room there is for what changes while a snapshot is there", p.Group, p.LV)
	}
	extent := v.ExtentSize * sector
	return g.Snapshot(ctx, lvm.SnapshotOptions{Name: name, Origin: p.LV, Extents: (uint64(p.Size) + extent - 1) / extent, Tags: tags}, why)
}

// sector is the unit of sizes in LVM's metadata, bytes.
const sector = 512

// Remove implements snapshots.Store, as lvremove does, which refuses what is open.
func (s snapshotStore) Remove(ctx context.Context, p snapshots.Plan, name string) error {
	g, err := s.group(p)
	if err != nil {
		return err
	}
	err = g.Remove(ctx, name, "scheduled snapshots of "+p.LV+": the oldest goes")
	if errors.Is(err, blockdev.ErrInUse) {
		return fmt.Errorf("%w: %w", snapshots.ErrHeld, err)
	}
	return err
}
