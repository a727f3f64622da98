package lvm

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"sync"
	"time"

	"softiser/blockdev"
	"softiser/blockdev/open"
	"softiser/lvm/internal/ondisk"
	"softiser/lvm/meta"
	"softiser/lvm/vg"
)

// Config says how groups are opened. The zero value is ready.
type Config struct {
	vg.Config
	// Open opens a device; nil opens files and block devices by path.
	Open func(path string) (blockdev.Device, error)
	// EpochDir returns where disks that another process has handed over remember their caches;
	// nil: nowhere.
	EpochDir func() string
	// Pool is the staging memory of leases; nil is the shared one.
	Pool *blockdev.Pool
	// FullWait is how long writes wait for a full thin pool to grow, unless it
	// is to fail at once; 0 is 60 s.
	FullWait time.Duration
	// Notice is told about damage that was found and mended, missing disks,
	// full pools, invalid snapshots. It may be nil.
	Notice func(text string)
}

func (c *Config) openDevice(path string) (blockdev.Device, error) {
	if c.Open != nil {
		return c.Open(path)
	}
	return open.Open(open.Spec{Path: path, Pool: c.Pool})
}

func (c *Config) notice(format string, a ...any) {
	if c.Notice != nil {
		c.Notice(fmt.Sprintf(format, a...))
	}
}

// Disks are opened devices, each of which may be a physical volume.
type Disks struct {
	cfg   Config
	Disks []*vg.Disk
}

// OpenDisks opens devices for writing and reads their labels.
func OpenDisks(cfg Config, paths []string) (*Disks, error) {
	ds := &Disks{cfg: cfg}
	for _, p := range paths {
		if abs, err := filepath.Abs(p); err == nil && cfg.Open == nil {
			p = abs
		}
		dev, err := cfg.openDevice(p)
		if err == nil {
			var d *vg.Disk
			if d, err = vg.NewDisk(p, dev); err == nil {
				ds.Disks = append(ds.Disks, d)
				continue
			}
			dev.Close()
		} else if o := ds.named(p); o != nil && errors.Is(err, blockdev.ErrInUse) {
			err = fmt.Errorf("that is %s, which is opened already: name each device once", o.Path)
		}
		ds.Close()
		return nil, fmt.Errorf("opening %s: %w", p, err)
	}
	return ds, nil
}

// named is the disk that a path leads to, if it is one of these.
func (ds *Disks) named(path string) *vg.Disk {
	st, err := os.Stat(path)
	if err != nil {
		return nil
	}
	for _, d := range ds.Disks {
		if o, err := os.Stat(d.Path); err == nil && os.SameFile(o, st) {
			return d
		}
	}
	return nil
}

// Scan sorts the disks into groups.
func (ds *Disks) Scan() *vg.Scan { return vg.ScanDisks(ds.cfg.Config, ds.Disks) }

// Close closes all devices.
func (ds *Disks) Close() error {
	var errs []error
	for _, d := range ds.Disks {
		errs = append(errs, d.Dev.Close())
	}
	ds.Disks = nil
	return errors.Join(errs...)
}

// Group is an open volume group.
//
// Sizes in extents are in those of the group (meta.VG.ExtentSize), and whole sizes, not
// differences. why is the description that goes into the text of a commit, where vgcfgrestore
// --list shows it.
//
// It has one lock, mu, which is held while the metadata is changed and devices are
// switched to it. The parts below have none: the exported methods of Group take mu,
// and whatever they call expects it. Operations that take long (pvmove, merge, Diff) give it
// up between their steps. The locks of devices come after it, but for the first write
// to an imported volume (written), which does not wait for it for ever.
type Group struct {
	cfg   Config
	name  string // with which it was opened
	disks *Disks

	mu    sync.Mutex // guards what follows, up to opened
	md    *metadata  // the text, and how it is committed
	act   *activeSet // volumes in use
	pools *thinPools
	snaps *snapshots // classic ones
	moves *mover

	opened int // Volumes

	background sync.WaitGroup // merges, and marks
	stop       chan struct{}  // closed by Close
}

// Open opens the devices and the group called name on them. Damaged or old
// metadata copies are repaired from the good one.
func Open(cfg Config, devices []string, name string) (*Group, error) {
	ds, err := OpenDisks(cfg, devices)
	if err != nil {
		return nil, err
	}
	g, err := ds.Group(name)
	if err != nil {
		ds.Close()
		return nil, err
	}
	return g, nil
}

// Group opens a group on these disks, which belong to it afterwards.
func (ds *Disks) Group(name string) (*Group, error) {
	g, err := ds.Scan().Find(name)
	if err != nil {
		return nil, err
	}
	if err := ours(g.VG); err != nil {
		return nil, err
	}
	err = g.Repair()
	for _, n := range g.Notices {
		ds.cfg.notice("%s", n)
	}
	if err != nil {
		return nil, fmt.Errorf("repairing volume group %q: %w", name, err)
	}
	return ds.group(g), nil
}

// ours refuses groups that other machines may be using.
func ours(v *meta.VG) error {
	switch {
	case v.Is("EXPORTED"):
		return fmt.Errorf("volume group %q is exported: import it with lvm2's vgimport first", v.Name)
	case v.Is("CLUSTERED") || v.Is("SHARED") || v.LockType != "" && v.LockType != "none":
		return fmt.Errorf("volume group %q is shared between machines by a lock manager, which is not spoken here", v.Name)
	case v.SystemID != "":
		return fmt.Errorf("volume group %q belongs to the system %q: take that away with `vgchange --systemid ''` there first", v.Name, v.SystemID)
	}
	return nil
}

func (ds *Disks) group(on *vg.Group) *Group {
	g := &Group{cfg: ds.cfg, name: on.VG.Name, disks: ds, stop: make(chan struct{})}
	g.md = &metadata{cfg: &g.cfg, group: on}
	g.act = &activeSet{md: g.md, nodes: map[ondisk.UUID]*node{}}
	g.pools = &thinPools{md: g.md, act: g.act}
	g.snaps = &snapshots{md: g.md, act: g.act, mu: &g.mu, background: &g.background, stop: g.stop}
	g.moves = &mover{md: g.md, act: g.act}
	g.md.committed = g.act.committed
	g.act.pool, g.act.thin = g.pools.buildPool, g.pools.buildThin
	g.act.snapshot, g.act.origin = g.snaps.buildSnapshot, g.snaps.buildOrigin
	return g
}

// CreateGroup is vgcreate: disks that are no PVs yet become some first.
func (ds *Disks) CreateGroup(name string, disks []*vg.Disk, o vg.GroupOptions, pv vg.PVOptions, why string) (*Group, error) {
	for _, d := range disks {
		if d.Label == nil {
			if err := ds.cfg.CreatePV(d, pv); err != nil {
				return nil, err
			}
		}
	}
	g, err := ds.cfg.Create(name, disks, o, why)
	if err != nil {
		return nil, err
	}
	return ds.group(g), nil
}

// Metadata returns a copy of the group's metadata.
func (g *Group) Metadata() *meta.VG {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.md.group.VG.Clone()
}

// View returns the group as it is now, for reports.
func (g *Group) View() *vg.Group {
	g.mu.Lock()
	defer g.mu.Unlock()
	v := *g.md.group
	v.VG, v.Disks, v.Notices = v.VG.Clone(), maps.Clone(v.Disks), nil
	return &v
}

// VG gives access to the group on its disks for reports and for the
// operations that need no activation. f must not keep it.
func (g *Group) VG(f func(*vg.Group) error) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return f(g.md.group)
}

// Close stops background work and closes the devices. Volumes must have been
// closed.
func (g *Group) Close() error { return g.closeAfter(func(*vg.Group) error { return nil }) }

// closeAfter is Close after a last change, in which nobody opens a volume any more. If one is open, or
// the change fails, the group stays open.
func (g *Group) closeAfter(change func(*vg.Group) error) error {
	g.mu.Lock()
	if g.md.closed {
		g.mu.Unlock()
		return blockdev.ErrClosed
	}
	var open []string
	for _, n := range g.act.nodes {
		if n.users > n.background {
			open = append(open, n.name)
		}
	}
	if len(open) > 0 {
		g.mu.Unlock()
		sort.Strings(open)
		return fmt.Errorf("volume group %q: %v %w", g.md.group.VG.Name, open, blockdev.ErrInUse)
	}
	if err := change(g.md.group); err != nil {
		g.mu.Unlock()
		return err
	}
	g.md.closed = true
	close(g.stop)
	g.mu.Unlock()
	g.background.Wait()
	g.mu.Lock()
	defer g.mu.Unlock()
	var errs []error
	for _, n := range g.act.nodes {
		errs = append(errs, n.shut())
	}
	g.act.nodes = nil
	return errors.Join(append(errs, g.disks.Close())...)
}

// closed reports whether Close has begun to close the devices.
func (g *Group) closed() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.md.closed
}

// AddDisks is vgextend: it opens devices, makes PVs of those that are none, and
// adds them to the group.
func (g *Group) AddDisks(paths []string, o vg.PVOptions, why string) error {
	g.mu.Lock()
	err := g.letGo(func(d *vg.Disk) bool { return slices.Contains(paths, d.Path) })
	for _, p := range paths {
		if d := g.disks.named(p); err == nil && d != nil && slices.Contains(slices.Collect(maps.Values(g.md.group.Disks)), d) {
			err = fmt.Errorf("%s is in volume group %q already", p, g.md.group.VG.Name)
		}
	}
	g.mu.Unlock()
	if err != nil {
		return err
	}
	ds, err := OpenDisks(g.cfg, paths)
	if err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.md.closed {
		return errors.Join(blockdev.ErrClosed, ds.Close())
	}
	for _, d := range ds.Disks {
		if d.Label == nil {
			if err := g.cfg.CreatePV(d, o); err != nil {
				return errors.Join(err, ds.Close())
			}
		}
	}
	if err := g.md.group.Extend(ds.Disks, why); err != nil {
		return errors.Join(err, ds.Close())
	}
	g.disks.Disks = append(g.disks.Disks, ds.Disks...)
	return nil
}

// RemoveDisks is vgreduce: it takes empty PVs out of the group, of those that which names, and closes their disks.
func (g *Group) RemoveDisks(which func(*vg.Group) ([]*meta.PV, error), why string) (gone []*meta.PV, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	pvs, err := which(g.md.group)
	if err != nil {
		return nil, err
	}
	disks := map[*vg.Disk]bool{}
	for _, pv := range pvs {
		disks[g.md.group.Disks[pv.ID]] = true
	}
	err = g.md.group.Reduce(pvs, why)
	return pvs, errors.Join(err, g.letGo(func(d *vg.Disk) bool { return disks[d] }))
}

// letGo closes disks that are open and not in the group. One of which a lease still reads stays open until the
// group is closed. The caller holds mu.
func (g *Group) letGo(which func(*vg.Disk) bool) error {
	used := map[*vg.Disk]bool{}
	for _, d := range g.md.group.Disks {
		used[d] = true
	}
	var errs []error
	g.disks.Disks = slices.DeleteFunc(g.disks.Disks, func(d *vg.Disk) bool {
		if used[d] || !which(d) {
			return false
		}
		err := d.Dev.Close()
		if errors.Is(err, blockdev.ErrInUse) {
			return false
		}
		errs = append(errs, err)
		return true
	})
	return errors.Join(errs...)
}
