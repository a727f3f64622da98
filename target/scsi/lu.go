package scsi

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"softiser/blockdev"
	"softiser/target/volume"
)

// QoS limits the rate of a volume's READs and WRITEs. 0 means no limit.
type QoS = volume.QoS

// Stats is a snapshot of what a volume has done since it was added.
type Stats = volume.Stats

// LUConfig describes a logical unit. The zero value of every optional field
// means the stated default.
type LUConfig struct {
	LUN    uint16
	Volume blockdev.Device // nil only for a removable unit without a medium

	Vendor   string // 8 characters; default "SOFTISER"
	Product  string // 16 characters; default "VIRTUAL-DISK"
	Revision string // 4 characters; default "1.0"
	// Serial, NAA and EUI override the identity that is otherwise derived from
	// the volume's ID; see volume.Identity. They are the same wherever the volume is
	// served.
	Serial string
	NAA    []byte // 8 or 16 bytes whose first nibble is 2, 3, 5 or 6
	EUI    []byte // 8, 12 or 16 bytes

	// Placement says whether the data of WRITEs is received into the volume itself
	// or checked first; default direct. It is the same wherever the volume is served.
	Placement Placement

	ReadOnly  bool // write-protected for every initiator of this LUN
	Removable bool
	// Workers is how many goroutines may wait for the volume (default 8), QoS its rate
	// limits. For a volume that is served already they are ignored: see LU.SetWorkers and
	// LU.SetQoS.
	Workers int
	QoS     QoS
	// Store, when set, is where a volume that moves between nodes keeps its state, instead
	// of Config.StateDir; see volume.Config. It is the same wherever the volume is served.
	Store volume.Store
	// MaxTransfer is the longest READ or WRITE, bytes; default 16 MiB.
	MaxTransfer int
	// Access is the asymmetric access state that the unit has at first through
	// each target port group; key 0 stands for the groups that are not named.
	// Default: the state of the group.
	Access map[uint16]AccessState
}

const (
	defaultWorkers     = volume.DefaultWorkers
	defaultMaxTransfer = 16 << 20
	// A longer WRITE is fetched and committed in such pieces. Staging memory is
	// shared by all volumes.
	directChunk = 4 << 20
	stagedChunk = blockdev.MaxBuffer
)

// LU is a logical unit at a LUN of a target: a place of a volume, with what belongs to
// that place alone. What it shares with the other places of the volume is in the unit
// and in the volume itself.
type LU struct {
	*unit
	dev   *Device
	lun   uint16
	cfg   LUConfig
	vol   *volume.Volume
	disk  blockdev.Device // of vol; nil: no medium
	place volume.Place
	fixed volume.Gate // what refuses commands at this place alone

	paths      []path       // by index of the target port group
	prefetches atomic.Int32 // that go on behind their status

	mu   sync.Mutex // guards what follows, and the unit attentions of each itl
	itls map[*Nexus]*itl
	past volume.Tally // latencies of nexuses that are gone
}

// writeChunkBytes is how much of [off, off+n) a write receives at once.
func (lu *LU) writeChunkBytes(off, n int64) int64 {
	if lu.vol.Verified(off, n) || !lu.geo().Info.InPlace {
		return stagedChunk
	}
	return directChunk
}

func (lu *LU) geo() *volume.Geometry { return lu.vol.Geo() }

// gates are the conditions of the volume and of the place that refuse commands.
func (lu *LU) gates() volume.Gate { return lu.vol.Gates() | lu.fixed }

var (
	errNoVolume = errors.New("no volume; only a removable unit may be without one")
	errLUN      = errors.New("the largest LUN is 16383")
)

// newLU makes a place of the volume on cfg.Volume, which it shares with other places
// of the same server.
func newLU(d *Device, cfg LUConfig) (*LU, error) {
	fail := func(err error) (*LU, error) {
		return nil, fmt.Errorf("target %s, LUN %d: %w", d.cfg.Name, cfg.LUN, err)
	}
	if cfg.Volume == nil && !cfg.Removable {
		return fail(errNoVolume)
	}
	if cfg.LUN > 16383 {
		return fail(errLUN)
	}
	setDefault(&cfg.Vendor, "SOFTISER")
	setDefault(&cfg.Product, "VIRTUAL-DISK")
	setDefault(&cfg.Revision, "1.0")
	if cfg.Workers <= 0 {
		cfg.Workers = defaultWorkers
	}
	if cfg.MaxTransfer <= 0 {
		cfg.MaxTransfer = defaultMaxTransfer
	}
	lu := &LU{dev: d, lun: cfg.LUN, cfg: cfg, disk: cfg.Volume, itls: map[*Nexus]*itl{}}
	if cfg.ReadOnly {
		lu.fixed = volume.ReadOnly
	}
	if err := lu.initPaths(cfg.Access); err != nil {
		return fail(err)
	}
	if err := lu.enter(); err != nil {
		return fail(err)
	}
	return lu, nil
}

// enter makes lu a place of its volume.
func (lu *LU) enter() error {
	d, cfg := lu.dev, &lu.cfg
	vc := volume.Config{
		Device: cfg.Volume, Identity: volume.Identity{Serial: cfg.Serial, NAA: cfg.NAA, EUI: cfg.EUI}, StateDir: d.cfg.StateDir, Store: cfg.Store,
		Placement: cfg.Placement, Workers: cfg.Workers, QoS: cfg.QoS, Staging: d.cfg.Staging,
	}
	if told := d.cfg.Fault; told != nil {
		vc.Fault = func(err error) { told(cfg.LUN, err) }
	}
	var err error
	if lu.vol, err = d.cfg.Volumes.Map(vc, &lu.place, volume.PlaceConfig{
		Name: fmt.Sprintf("LUN %d of target %s", cfg.LUN, d.cfg.Name), Seed: fmt.Sprintf("%s/%d", d.cfg.Name, cfg.LUN),
		ReadOnly: cfg.ReadOnly, Face: (*face)(lu),
	}); err != nil {
		return err
	}
	if lu.unit, err = volume.Shared(lu.vol, func() (*unit, error) { return newUnit(lu) }); err == nil {
		err = lu.vol.Adopt(d.cfg.Name)
	}
	if err != nil {
		lu.close()
		return err
	}
	lu.unit.enter(lu)
	lu.tellPaths()
	return nil
}

func setDefault(s *string, v string) {
	if *s == "" {
		*s = v
	}
}

// Stats returns the counters of the unit's volume; Tasks are those of this LUN.
func (lu *LU) Stats() Stats {
	s := lu.vol.Stats()
	s.Tasks = lu.place.Users()
	return s
}

// Close ends the unit of a target device that ends, as drain does. All nexuses that send
// commands must have been closed. Until it returns nil the volume is in use.
func (lu *LU) Close(ctx context.Context) error { return lu.drain(ctx) }

// drain waits until no task uses the unit any more; with the last place of a volume
// its workers end. If ctx ends first, that happens when the last task does, and drain may
// be called again to wait for it.
func (lu *LU) drain(ctx context.Context) error {
	if err := lu.place.Drain(ctx); err != nil {
		return fmt.Errorf("LUN %d: %w", lu.lun, err)
	}
	return nil
}

// close is drain of a LU that nobody has seen.
func (lu *LU) close() { _ = lu.place.Drain(context.Background()) } // which does not end
