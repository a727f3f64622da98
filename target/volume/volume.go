package volume

import (
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"softiser/blockdev"
)

// Config describes a volume. The zero value of every optional field means the stated
// default. A volume with several places has the Config of the first one; Identity and
// Placement of the others must be the same. SetQoS and SetWorkers change it for all places.
type Config struct {
	Device blockdev.Device // nil: there is no medium; such a volume has one place
	// Identity overrides what is otherwise derived from the device's ID.
	Identity Identity
	// StateDir is the folder of what must survive a restart: reservations, saved parameters,
	// and a note, made at an orderly end, that everything has been flushed. Empty: neither
	// lasting reservations nor saved parameters are offered.
	StateDir string
	// Store, when set, takes the place of StateDir: the volume moves between nodes, which
	// share it. Such a volume begins closed, see Activate, and its device is one that opens
	// and closes meanwhile (blockdev/lazy).
	Store Store
	// Placement says whether the data of writes is received into the device itself or
	// checked first; default direct.
	Placement Placement
	Workers   int // how many goroutines may wait for the device; default 8
	QoS       QoS
	// Staging is the memory into which writes with verified placement are received; nil:
	// blockdev.DefaultPool.
	Staging *blockdev.Pool
	// Fault, when set, is called with internal errors, such as a transition that a state
	// table does not have. It may be called with locks held and must not block.
	Fault func(error)
}

// DefaultWorkers is Config.Workers when it is not set.
const DefaultWorkers = 8

// Volume is a device that commands reach by one place or several: see the package
// comment. It is made by the first Registry.Map and ends with the last place.
type Volume struct {
	medium                 // the device and its size
	gates                  // why commands are refused
	Tasks                  // the task set, with workers and rate limit
	reserved               // the reservations
	badBlocks              // what cannot be read; reads and writes go through it
	placing                // where the data of writes is received
	share      volumeShare // of the memory for that
	epochs                 // whether unflushed writes may have been lost
	paths                  // its state through each portal group
	places                 // where it is served
	background             // what goes on beside its commands

	Counters Counters
	Space    Space
	Rewriter Rewriter
	Journal  Journal

	cfg       Config
	announcer blockdev.Announcer // the device, if it can be told what will be read; else nil
	id        Identity
	cache     atomic.Bool // completed writes may be volatile
	state     state
	tie       tie // what of the state goes with the content
	bufs      Buffers

	opened  chan struct{} // closed: open has ended, well or not
	stops   []func()      // end the notifications of the device
	started sync.Once     // of Rewriter.resume
	goesOn  *goingOn      // what another process had; nil: nothing, or it is in force

	sharedMu sync.Mutex
	shared   any // guarded by sharedMu: see Shared
}

// newVolume makes the volume of cfg, still to be opened; keeps says whether the files that id names are
// its own.
func newVolume(cfg Config, id Identity, keeps bool) (*Volume, error) {
	if cfg.Workers <= 0 {
		cfg.Workers = DefaultWorkers
	}
	if cfg.Staging == nil {
		cfg.Staging = blockdev.DefaultPool()
	}
	info := deviceInfo(cfg.Device)
	if info.BlockSize < 512 || info.BlockSize&(info.BlockSize-1) != 0 || cfg.Device != nil && info.Size < int64(info.BlockSize) {
		return nil, fmt.Errorf("volume of %d bytes with blocks of %d cannot be a disk", info.Size, info.BlockSize)
	}
	v := &Volume{cfg: cfg, id: id}
	v.medium.dev = cfg.Device
	v.announcer = announcer(cfg.Device)
	v.fault = cfg.Fault
	v.pool.init(&v.mu, cfg.Workers)
	v.limit.pool = &v.pool
	v.opened = make(chan struct{})
	v.places.all.Store(new([]*Place))
	v.Rewriter.vol, v.Journal.vol = v, v
	v.Rewriter.allow()
	v.reserved.state, v.reserved.tasks, v.reserved.tell = &v.state, &v.Tasks, v.notify
	v.reserved.now.Store(&Reservations{})
	v.badBlocks.medium, v.badBlocks.state, v.badBlocks.tie = &v.medium, &v.state, &v.tie
	v.tie.medium, v.tie.state = &v.medium, &v.state
	v.epochs.medium, v.epochs.state = &v.medium, &v.state
	v.background.tasks, v.background.medium, v.background.counters = &v.Tasks, &v.medium, &v.Counters
	v.paths.announce = v.notify
	v.placing.init(&v.badBlocks, cfg.Placement, cfg.Staging)
	v.share.pool = cfg.Staging
	switch {
	case cfg.Store != nil:
		v.state.store = cfg.Store
	case keeps:
		v.state.store = dirStore(cfg.StateDir)
	}
	v.state.key, v.state.moves = id.Key(), cfg.Store != nil
	v.setGeometry(info)
	v.cache.Store(info.WriteCache)
	v.Space.init(&v.medium, v.notify)
	v.limit.init(cfg.QoS)
	v.SetGate(NoMedium, cfg.Device == nil)
	v.SetGate(Closed, cfg.Store != nil)
	v.away.Store(cfg.Store != nil)
	v.SetGate(ReadOnly, info.ReadOnly)
	return v, nil
}

// Identity returns what initiators recognise the volume by. It does not change.
func (v *Volume) Identity() *Identity { return &v.id }

// Keeps reports whether the volume has somewhere to keep state.
func (v *Volume) Keeps() bool { return v.state.keeps() }

// Moves reports whether the volume moves between nodes.
func (v *Volume) Moves() bool { return v.state.moves }

// WriteCache reports whether completed writes may be volatile until a flush. It says
// nothing about a device that has no cache.
func (v *Volume) WriteCache() bool { return v.cache.Load() }

// SetWriteCache sets whether completed writes may be volatile. Having turned the cache off,
// the caller flushes what it holds.
func (v *Volume) SetWriteCache(on bool) { v.cache.Store(on) }

// BuffersOut tells how many of the volume's buffers are lent, for leak checks.
func (v *Volume) BuffersOut() int { return v.bufs.Out() }

// errShared is a mistake of ours: two front ends would have to keep what they share
// apart.
var errShared = errors.New("volume: internal error: another front end shares something else")

// Shared returns what the faces of one front end share about a volume, made by the
// first of them.
func Shared[T any](v *Volume, make func() (*T, error)) (*T, error) {
	v.sharedMu.Lock()
	defer v.sharedMu.Unlock()
	if v.shared == nil {
		t, err := make()
		if err != nil {
			return nil, err
		}
		v.shared = t
	}
	t, ok := v.shared.(*T)
	if !ok {
		return nil, errShared
	}
	return t, nil
}

// SavedParameters returns what SaveParameters has saved, in this life or an earlier
// one; nil: nothing.
func (v *Volume) SavedParameters() json.RawMessage {
	v.state.mu.Lock()
	defer v.state.mu.Unlock()
	return v.state.kept.Modes
}

// SaveParameters keeps parameters through a restart, in the front end's own form; nil:
// the defaults. Preconditions: the volume Keeps.
func (v *Volume) SaveParameters(p json.RawMessage) error {
	v.state.mu.Lock()
	defer v.state.mu.Unlock()
	next := v.state.kept
	next.Modes = p
	return v.state.save(next)
}
