package scsi

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"
	"sync"
	"sync/atomic"

	"softiser/internal/spc"

	"softiser/blockdev"
	"softiser/target/volume"
)

// Config describes a SCSI target device.
type Config struct {
	// Name is the iSCSI name of the target; it goes into the SCSI device and
	// port names of VPD page 83h.
	Name string
	// Groups are the target port groups. None means one group with identifier
	// 1 and port 1, active/optimized.
	Groups []PortGroup
	// Remote are the target port groups of other nodes, with identifiers and ports that no
	// group here has. A registration through all ports is one through theirs, too.
	Remote []PortGroup
	// ExplicitALUA lets initiators change the access states of units by SET TARGET PORT
	// GROUPS. Otherwise only this side changes them (TPGS 1): an initiator sees one
	// target, and does not know what another one with the same data is doing.
	ExplicitALUA bool
	// StateDir is the folder of what must survive a restart: persistent reservations with
	// APTPL, saved mode pages, and a note, made at an orderly end, that everything has been
	// flushed. Empty: neither APTPL nor saving of mode pages is offered.
	StateDir string
	// Fault, when set, is called with each error of a volume's backing store, lack of
	// space included. It may be called at any rate, from any goroutine, and must not block.
	Fault func(lun uint16, err error)
	// Staging is the memory into which units with verified placement receive; nil:
	// blockdev.DefaultPool.
	Staging *blockdev.Pool
	// Volumes is what the devices of one server share: a volume that several of them
	// serve is one unit; nil where there is no other device.
	Volumes *volume.Registry
}

// Device is one SCSI target device with its logical units.
type Device struct {
	cfg   Config
	table *table
	bufs  volume.Buffers
	alua  alua

	luns    atomic.Pointer[map[uint16]*LU] // copy on write, under mu
	leaving atomic.Pointer[[]*LU]          // removed, but not drained; copy on write, under mu

	mu      sync.Mutex // guards luns and leaving (writers), nexuses, seen
	nexuses map[*Nexus]struct{}
	seen    map[string]bool // initiator ports that have had a nexus, bounded
	tokens  tokenStore      // has its own lock
}

// NewDevice makes a target device without logical units.
func NewDevice(cfg Config) (*Device, error) {
	if cfg.Volumes == nil {
		cfg.Volumes = new(volume.Registry)
	}
	if cfg.Staging == nil {
		cfg.Staging = blockdev.DefaultPool()
	}
	d := &Device{cfg: cfg, nexuses: map[*Nexus]struct{}{}, seen: map[string]bool{}}
	if err := d.alua.init(cfg.Groups, cfg.Remote); err != nil {
		return nil, fmt.Errorf("target %s: %w", cfg.Name, err)
	}
	d.table = newTable()
	d.luns.Store(&map[uint16]*LU{})
	d.leaving.Store(new([]*LU))
	return d, nil
}

// lookup returns the logical unit with number n, or nil.
func (d *Device) lookup(n uint16) *LU { return (*d.luns.Load())[n] }

// LUs returns the logical units in ascending order of LUN.
func (d *Device) LUs() []*LU {
	m := *d.luns.Load()
	lus := make([]*LU, 0, len(m))
	for _, lu := range m {
		lus = append(lus, lu)
	}
	sort.Slice(lus, func(i, j int) bool { return lus[i].lun < lus[j].lun })
	return lus
}

// AddLUN makes a logical unit of cfg. Initiators with a nexus learn it by unit
// attention 3F/0E, and from the new unit itself 3F/03: another one may have been
// behind that number before.
func (d *Device) AddLUN(cfg LUConfig) (*LU, error) {
	exists := fmt.Errorf("target %s: LUN %d exists already; remove it first", d.cfg.Name, cfg.LUN)
	if d.lookup(cfg.LUN) != nil {
		return nil, exists
	}
	lu, err := newLU(d, cfg)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	if d.lookup(cfg.LUN) != nil { // added meanwhile
		d.mu.Unlock()
		lu.close()
		return nil, exists
	}
	if err := d.twiceLocked(lu); err != nil {
		d.mu.Unlock()
		lu.close()
		return nil, err
	}
	d.setLocked(cfg.LUN, lu)
	d.mu.Unlock()
	lu.place.Start()
	d.lunsChanged(lu)
	return lu, nil
}

// twiceLocked says why lu cannot be in this target: its volume is, at another LUN, and
// one of the two can be written. Initiators would take them for two paths through one
// port, and whatever names a unit within a target (EXTENDED COPY, say) could mean either.
func (d *Device) twiceLocked(lu *LU) error {
	for _, o := range d.LUs() {
		if o.vol == lu.vol && (o.place.Writable() || lu.place.Writable()) {
			return fmt.Errorf("target %s, LUN %d: the volume is LUN %d of target %s already. A volume that can be written has one LUN in a target; "+
				"for several paths give the target several portals, or serve the volume by further targets", d.cfg.Name, lu.lun, o.lun, d.cfg.Name)
		}
	}
	return nil
}

// setLocked publishes lu (nil: none) under number n and gives every nexus its
// side of it.
func (d *Device) setLocked(n uint16, lu *LU) {
	m := map[uint16]*LU{}
	for k, v := range *d.luns.Load() {
		m[k] = v
	}
	if lu == nil {
		delete(m, n)
	} else {
		m[n] = lu
	}
	d.luns.Store(&m)
	for x := range d.nexuses {
		x.setLocked(n, lu)
	}
}

// takeAwayLocked frees the number of lu, whose tasks task management can still reach until the
// last one has ended. lu is added to leaving before it is removed from luns, so that a reader
// that looks at luns first and leaving second finds it in one of them. Preconditions: d.mu is
// held.
func (d *Device) takeAwayLocked(lu *LU) {
	l := append(slices.Clone(*d.leaving.Load()), lu)
	d.leaving.Store(&l)
	d.setLocked(lu.lun, nil)
}

// left forgets a unit that has been drained.
func (d *Device) left(lu *LU) {
	d.mu.Lock()
	defer d.mu.Unlock()
	l := slices.DeleteFunc(slices.Clone(*d.leaving.Load()), func(x *LU) bool { return x == lu })
	d.leaving.Store(&l)
}

// withTasks returns the units that may have tasks, each once: those that are there, and
// those that have been removed under theirs.
func (d *Device) withTasks() []*LU { return d.andLeaving(d.LUs(), nil) }

// andLeaving adds to lus, which has been read before, the leaving units that match
// (nil: all). One that is on its way out may be in both.
func (d *Device) andLeaving(lus []*LU, match func(*LU) bool) []*LU {
	for _, lu := range *d.leaving.Load() {
		if (match == nil || match(lu)) && !slices.Contains(lus, lu) {
			lus = append(lus, lu)
		}
	}
	return lus
}

// lunsChanged tells every nexus, through every logical unit but the new one,
// that the inventory has changed.
func (d *Device) lunsChanged(except *LU) {
	for _, lu := range d.LUs() {
		if lu != except {
			lu.attention(spc.ASCLUNsChanged, nil)
		}
	}
}

// RemoveLUN takes a logical unit away: new commands find no such unit, running
// ones end, and when the session layer has released the last of them the call
// returns. The volume itself stays open; it is the caller's. If ctx ends first,
// the unit is gone for initiators but its volume is still in use.
func (d *Device) RemoveLUN(ctx context.Context, n uint16) error {
	d.mu.Lock()
	lu := d.lookup(n)
	if lu == nil {
		d.mu.Unlock()
		return fmt.Errorf("target %s: no LUN %d", d.cfg.Name, n)
	}
	d.takeAwayLocked(lu)
	d.mu.Unlock()
	d.lunsChanged(nil)
	return lu.drain(ctx)
}

// Removed reports whether the unit has been taken away from its device.
func (lu *LU) Removed() bool { return lu.place.Removed() }

// Close ends every logical unit, as LU.Close does; none waits for another.
func (d *Device) Close(ctx context.Context) error {
	lus := d.LUs()
	errs := make([]error, len(lus))
	var wg sync.WaitGroup
	for i, lu := range lus {
		wg.Go(func() { errs[i] = lu.Close(ctx) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// SetAccessState changes the access state of a target port group for a logical
// unit from this side (an implicit transition). Initiators learn it by unit
// attention.
func (d *Device) SetAccessState(lun, group uint16, s AccessState) error {
	lu, g := d.lookup(lun), d.alua.group(group)
	switch {
	case lu == nil:
		return fmt.Errorf("target %s has no LUN %d", d.cfg.Name, lun)
	case g == nil:
		return fmt.Errorf("target %s has no target port group %d; there are %v", d.cfg.Name, group, d.alua.numbers())
	case !initial(s) && s != Transitioning:
		return fmt.Errorf("target %s: %v is not an access state", d.cfg.Name, s)
	}
	lu.setPath(g, s, 2, nil)
	return nil
}
