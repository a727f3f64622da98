package lvm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"softiser/blockdev"
	"softiser/internal/namelock"
	"softiser/lvm/internal/ondisk"
	"softiser/lvm/vg"
)

// Spec is a configured volume of type lvm.
type Spec struct {
	VG, LV  string
	Devices []string // files or block devices that hold the group
	// Size, bytes: create the volume if it does not exist, and the group, and
	// sparse files for it. 0: everything must exist.
	Size       int64
	DeviceSize int64 // bytes of each backing file that is created; 0: room for the volume
	Stripes    int   // of the volume, or of the pool that is created for it
	StripeSize int64 // bytes; 0 is 64 KiB
	// Pool makes it a thin volume. PoolSize, bytes: create the pool, too, if it
	// does not exist.
	Pool          string
	PoolSize      int64
	ErrorWhenFull bool
}

// stored is how much room the volume takes on the devices.
func (s *Spec) stored() int64 {
	if s.Pool != "" {
		return s.PoolSize
	}
	return s.Size
}

// Manager opens volumes of several groups; a group is opened once for all of
// its volumes. The zero value with a Config is ready.
//
// Opening and closing wait for disks, so mu is not held then: who opens a volume, or closes its group,
// has the turn of the group's name. A disk that hangs holds its own group up, and not the others.
type Manager struct {
	Config Config

	turns namelock.Turns[string] // of the groups

	mu       sync.Mutex // guards what follows
	groups   map[string]*Group
	expected map[string]*Handed // by another process and not opened yet
	lost     map[string]error   // of these, until Forget: why a group could not be had
}

// Open opens a volume, made first if the spec has a size and it is missing.
func (m *Manager) Open(s Spec) (blockdev.Device, error) {
	v, err := m.open(s)
	if err != nil {
		return nil, fmt.Errorf("lvm volume %s/%s: %w", s.VG, s.LV, err)
	}
	return v, nil
}

func (m *Manager) open(s Spec) (*Volume, error) {
	defer m.turns.Begin(s.VG)() // until the volume keeps the group open, and so that only one makes what is missing
	g, err := m.group(s)
	if err != nil {
		return nil, err
	}
	if err := m.mayServe(g, s.LV); err != nil {
		return nil, err
	}
	v, err := g.Volume(s.LV)
	if err == nil || s.Size == 0 || !errors.Is(err, vg.ErrNotFound) {
		return v, err
	}
	if err := g.createFor(s); err != nil {
		return nil, err
	}
	return g.Volume(s.LV)
}

// mayServe refuses a volume that is not to be served, unless it is handed over: who serves it goes on.
func (m *Manager) mayServe(g *Group, name string) error {
	m.mu.Lock()
	handed := m.expected != nil
	m.mu.Unlock()
	v := g.Metadata()
	lv := v.LV(name)
	if handed || lv == nil {
		return nil
	}
	return Servable(v, lv)
}

func (g *Group) createFor(s Spec) error {
	const why = "first start with this configuration"
	v := g.Metadata()
	extents := func(bytes int64) uint64 {
		size := v.ExtentSize * ondisk.SectorSize
		return (uint64(bytes) + size - 1) / size
	}
	stripe := uint64(s.StripeSize) / ondisk.SectorSize
	if s.Pool == "" {
		return g.Create(CreateOptions{Name: s.LV, Extents: extents(s.Size), Stripes: s.Stripes, StripeSize: stripe}, why)
	}
	if v.LV(s.Pool) == nil {
		if s.PoolSize == 0 {
			return fmt.Errorf("thin pool %s/%s %w; create it with `iser-target lvm lvcreate -T`, or say pool_size", s.VG, s.Pool, vg.ErrNotFound)
		}
		err := g.CreatePool(PoolOptions{Name: s.Pool, Extents: extents(s.PoolSize), Stripes: s.Stripes, StripeSize: stripe, ErrorWhenFull: s.ErrorWhenFull}, why)
		if err != nil {
			return err
		}
	}
	return g.CreateThin(context.Background(), ThinOptions{Pool: s.Pool, Name: s.LV, Extents: extents(s.Size)}, why)
}

// Group returns an open group by name, nil if none is open.
func (m *Manager) Group(name string) *Group {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.groups[name]
}

// Groups returns the names of the open groups.
func (m *Manager) Groups() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []string
	for n := range m.groups {
		out = append(out, n)
	}
	slices.Sort(out)
	return out
}

// group returns the group of s, whose turn the caller has: the one that is open, the one that another
// process has handed over, or one that it opens.
func (m *Manager) group(s Spec) (*Group, error) {
	m.mu.Lock()
	g, lost, h := m.groups[s.VG], m.lost[s.VG], m.expected[s.VG]
	if g == nil && lost == nil {
		delete(m.expected, s.VG)
	}
	m.mu.Unlock()
	var err error
	switch {
	case g != nil || lost != nil:
		return g, lost
	case h != nil:
		g, err = m.adopt(h)
	default:
		g, err = m.openGroup(s)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case err == nil:
		if m.groups == nil {
			m.groups = map[string]*Group{}
		}
		m.groups[s.VG] = g
	case h != nil:
		// Its disks are the old process's as long as that has not ended: who opened them anew
		// would be told of that, and not of the reason.
		err = fmt.Errorf("volume group %q, which another process has handed over, cannot be had: %w", s.VG, err)
		if m.lost == nil {
			m.lost = map[string]error{}
		}
		m.lost[s.VG] = err
	}
	return g, err
}

// openGroup opens the group of s, and creates its files and the group where s asks for
// it.
func (m *Manager) openGroup(s Spec) (*Group, error) {
	if len(s.Devices) == 0 {
		return nil, errors.New("no devices: name the files or block devices that hold the volume group")
	}
	if s.Size != 0 {
		each := s.DeviceSize
		if each == 0 {
			// The volume spread over all files, with room for as much again.
			each = 2*s.stored()/int64(len(s.Devices)) + 64<<20
		}
		for _, p := range s.Devices {
			if err := makeFile(p, each); err != nil {
				return nil, err
			}
		}
	}
	ds, err := OpenDisks(m.Config, s.Devices)
	if err != nil {
		return nil, err
	}
	g, err := ds.Group(s.VG)
	if errors.Is(err, vg.ErrNotFound) && s.Size != 0 {
		g, err = ds.CreateGroup(s.VG, ds.Disks, vg.GroupOptions{}, vg.PVOptions{}, "first start with this configuration")
	}
	if err != nil {
		ds.Close()
		return nil, err
	}
	return g, nil
}

// Drop closes a group, whose volumes must have been closed: if one is open the group stays open,
// and Group finds it. With any other error it has closed, not well.
func (m *Manager) Drop(name string) error {
	return m.DropAfter(name, func(*vg.Group) error { return nil })
}

// DropAfter is Drop of a group that is not to be found under its name any more after a last change: that
// is made if no volume is open, and nobody opens one before it is dropped. If it fails the group stays open.
func (m *Manager) DropAfter(name string, change func(*vg.Group) error) error {
	defer m.turns.Begin(name)()
	g := m.Group(name)
	if g == nil {
		return fmt.Errorf("volume group %q %w", name, vg.ErrNotFound)
	}
	err := g.closeAfter(change)
	if g.closed() { // ErrInUse may also be that of a disk
		m.forgetGroup(name)
	}
	return err
}

func (m *Manager) forgetGroup(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.groups, name)
}

// Close closes all groups, those that are being opened too; their volumes must have been closed.
func (m *Manager) Close() error {
	names := m.turns.Names() // first: what is being opened is among the groups when its turn is over
	names = append(names, m.Groups()...)
	slices.Sort(names)
	var errs []error
	for _, name := range slices.Compact(names) {
		errs = append(errs, m.shut(name))
	}
	return errors.Join(errs...)
}

// shut closes a group, if it is open, whatever comes of it.
func (m *Manager) shut(name string) error {
	defer m.turns.Begin(name)()
	g := m.Group(name)
	if g == nil {
		return nil
	}
	m.forgetGroup(name)
	return g.Close()
}
