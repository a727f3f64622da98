package volume

import (
	"errors"
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"

	"softiser/blockdev"
)

// Config describes a volume. The zero value of every optional field means the stated
// default. Of several places the first one's counts, but for Identity and Placement,
// which must be the same, and SetQoS and SetWorkers change the volume for all.
type Config struct {
	Device blockdev.Device // nil: there is no medium; such a volume has one place
	// Identity overrides what is otherwise derived from the device's ID.
	Identity Identity
	// StateDir keeps what must survive a restart: reservations, saved parameters (empty:
	// neither is offered), and of what has been flushed at an orderly end that it was.
	StateDir string
	// Store, when set, takes the place of StateDir: the volume moves between nodes, which
	// share it. Such a volume begins closed, see Activate, and its device is one that opens
	// and closes meanwhile (blockdev/lazy).
	Store Store
	// Placement says whether the data of writes is received into the device itself or
	// checked first; default direct.
	Placement Placement
	Workers   int // most goroutines that wait for the device; default 8
	QoS       QoS
	// Staging is the memory into which writes with verified placement are received; nil:
	// blockdev.DefaultPool.
	Staging *blockdev.Pool
	// Fault, when set, is told of mistakes of ours that are found out. It may be called
	// with locks held and must not wait.
	Fault func(error)
}

// DefaultWorkers is Config.Workers when it is not set.
const DefaultWorkers = 8

// Volume is a device that commands reach by one place or several: see the package
// comment. It is made by the first Registry.Map and ends with the last place.
type Volume struct {
	Tasks    // the task set, with workers and rate limit
	reserved // the reservations
	badBlocks
	Counters Counters
	Space    Space
	Rewriter Rewriter
	Journal  Journal

	cfg Config
	dev blockdev.Device // nil: no medium
	id  Identity

	lender   WriteLender // dev, or stager
	stager   *verifier   // receives what is not to be received into dev
	verifier *verifier   // nil: placement is direct

	epoch    atomic.Pointer[[16]byte] // see epoch.go; another one after each Activate
	geometry atomic.Pointer[Geometry]
	gates    atomic.Uint32
	cache    atomic.Bool // completed writes may be volatile
	erased   atomic.Bool // every block is deallocated: nothing has been written since a block erase
	state    state
	bufs     Buffers

	pathMu sync.Mutex // guards changes of paths
	paths  paths

	users   atomic.Int64 // what goes on in the background
	gone    atomic.Bool  // its last place has been removed
	flushes atomic.Int64 // requests for FlushBehind
	stops   []func()     // end the notifications of the device

	places atomic.Pointer[[]*Place] // copy on write, under Registry.mu
	live   int                      // of places: not removed; guarded by Registry.mu

	opened  chan struct{} // closed: open has ended, well or not
	started sync.Once     // of Rewriter.resume
	goesOn  *goingOn      // what another process had; nil: nothing, or it is in force

	sharedMu sync.Mutex
	shared   any // guarded by sharedMu: see Shared
}

// Geometry is the size of the medium as commands see it.
type Geometry struct {
	Info   blockdev.Info
	Blocks uint64
	Shift  uint8 // log2 of the block size
}

// Gate is a set of conditions of a volume that refuse commands; a command's mask
// tells which ones concern it.
type Gate uint32

// Gates.
const (
	NoMedium       Gate = 1 << iota
	Sanitizing          // a sanitize runs
	SanitizeFailed      // one has failed
	ReadOnly            // the device, or the place, cannot be written
	WriteProtected      // initiators have said so
	Formatting          // a format runs
	Corrupt             // one has not ended
	Testing             // a test that nobody is to disturb runs
	Protected           // initiators have said so, and it is kept: see protect.go
	Closed              // the device is open on another node, or on none: see standby.go
	MediumGates    = NoMedium | Sanitizing | SanitizeFailed | Formatting | Corrupt | Closed
	WriteGates     = MediumGates | ReadOnly | WriteProtected | Protected
)

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
	v := &Volume{cfg: cfg, dev: cfg.Device, id: id}
	v.fault = cfg.Fault
	v.work.L = &v.mu
	v.maxWorkers = cfg.Workers
	v.Rewriter.vol, v.Journal.vol, v.badBlocks.vol = v, v, v
	v.opened = make(chan struct{})
	v.Rewriter.allow()
	v.reserved.state, v.tasks, v.tell = &v.state, &v.Tasks, v.notify
	v.now.Store(&Reservations{})
	v.places.Store(new([]*Place))
	v.stager = &verifier{vol: v, pool: cfg.Staging}
	if v.lender = v.dev; cfg.Placement == PlacementVerified && v.dev != nil {
		v.verifier = v.stager
		v.lender = v.verifier
	}
	switch {
	case cfg.Store != nil:
		v.state.store = cfg.Store
	case keeps:
		v.state.store = dirStore(cfg.StateDir)
	}
	v.state.key = id.Key()
	v.setGeometry(info)
	v.cache.Store(info.WriteCache)
	v.Space.init(v)
	v.limit.init(cfg.QoS)
	v.SetGate(NoMedium, cfg.Device == nil)
	v.SetGate(Closed, cfg.Store != nil)
	v.away.Store(cfg.Store != nil)
	v.SetGate(ReadOnly, info.ReadOnly)
	return v, nil
}

// open brings back what was kept, and begins to listen to the device. Nobody else uses
// the volume before it returns.
func (v *Volume) open() error {
	if v.Moves() {
		v.epoch.Store(newEpoch()) // nothing can have been written yet
	} else if err := v.restore(); err != nil {
		return err
	}
	v.listen()
	return nil
}

// restore brings back what was kept.
func (v *Volume) restore() error {
	for _, step := range []func() error{v.loadState, v.Journal.undo} {
		if err := step(); err != nil {
			v.Journal.close()
			return err
		}
	}
	if v.goesOn != nil {
		v.goesOn.begin(v)
		v.goesOn = nil
		return nil
	}
	v.takeEpoch()
	return nil
}

// listen asks the device to tell what changes.
func (v *Volume) listen() {
	if v.dev == nil {
		return
	}
	v.stops = append(v.stops, v.dev.OnResize(func(i blockdev.Info) {
		v.setGeometry(i)
		v.notify(Event{Kind: GeometryChanged})
	}))
	if low, ok := v.dev.(blockdev.LowSpace); ok {
		v.stops = append(v.stops, low.OnLowSpace(v.lowSpace))
	}
	if m := v.Space.meter; m != nil {
		v.stops = append(v.stops, m.OnSpaceChange(v.checkSpace))
	}
}

// deviceInfo returns what a volume without a medium pretends to be.
func deviceInfo(d blockdev.Device) blockdev.Info {
	if d == nil {
		return blockdev.Info{BlockSize: 512, PhysBlockSize: 512}
	}
	return d.Info()
}

func (v *Volume) setGeometry(info blockdev.Info) {
	// A volume that nobody may write is not one that cannot unmap: the command is
	// there, and refused as a write is.
	info.Discard = info.Discard || info.ReadOnly
	g := &Geometry{Info: info, Shift: uint8(bits.TrailingZeros(uint(info.BlockSize)))}
	g.Blocks = uint64(info.Size) >> g.Shift
	v.geometry.Store(g)
}

// notify tells every face of an event.
func (v *Volume) notify(e Event) {
	for _, p := range *v.places.Load() {
		p.face.Notify(e)
	}
}

// Geo returns the present geometry.
func (v *Volume) Geo() *Geometry { return v.geometry.Load() }

// Device returns the device; nil: there is no medium.
func (v *Volume) Device() blockdev.Device { return v.dev }

// Identity returns what initiators recognise the volume by. It does not change.
func (v *Volume) Identity() *Identity { return &v.id }

// Gates returns the conditions that refuse commands.
func (v *Volume) Gates() Gate { return Gate(v.gates.Load()) }

// SetGate sets or clears conditions.
func (v *Volume) SetGate(g Gate, on bool) {
	if on {
		v.gates.Or(uint32(g))
	} else {
		v.gates.And(^uint32(g))
	}
}

// WriteCache reports whether completed writes may be volatile until a flush. It says
// nothing about a device that has no cache.
func (v *Volume) WriteCache() bool { return v.cache.Load() }

// SetWriteCache says whether they may be. What the cache holds when it is turned off is
// for the caller to flush.
func (v *Volume) SetWriteCache(on bool) { v.cache.Store(on) }

// Touched notes that the device is about to be written.
func (v *Volume) Touched() {
	if v.erased.Load() {
		v.erased.Store(false)
	}
}

// Extents is the device's, except that after a block erase the volume knows better
// than a device that cannot tell.
func (v *Volume) Extents(off, n int64) ([]blockdev.Extent, error) {
	if v.erased.Load() {
		return []blockdev.Extent{{Off: off, Len: n}}, nil
	}
	return v.dev.Extents(off, n)
}

// use keeps the volume open until users is counted down again; it reports false when
// its last place has been removed.
func (v *Volume) use() bool {
	v.users.Add(1)
	if v.gone.Load() {
		v.users.Add(-1)
		return false
	}
	return true
}

// unuse ends a use.
func (v *Volume) unuse() {
	v.users.Add(-1)
	v.mu.Lock()
	v.frozen.tell()
	v.mu.Unlock()
}

// FlushBehind flushes the device in the background; any number of requests cost
// one goroutine.
func (v *Volume) FlushBehind() {
	if v.flushes.Add(1) > 1 {
		return // the running one goes round again
	}
	if !v.use() {
		v.flushes.Store(0) // whoever removed the last place flushes the device
		return
	}
	go func() {
		defer v.unuse()
		for {
			n := v.flushes.Load()
			// An error is not lost: the device stays poisoned and tells the next
			// command that asks.
			if err := v.dev.Flush(); err != nil {
				v.CountError(err, Writing)
			}
			if v.flushes.CompareAndSwap(n, 0) {
				return
			}
		}
	}()
}

// shut ends the workers and hands on what the next process needs. Preconditions: no
// commands, nothing in the background.
func (v *Volume) shut() {
	for _, stop := range v.stops {
		stop()
	}
	v.mu.Lock()
	v.closed = true
	v.limit.stop()
	v.work.Broadcast()
	for v.workers > 0 {
		v.work.Wait()
	}
	v.mu.Unlock()
	if v.Gates()&Closed != 0 { // Deactivate has done the rest
		return
	}
	v.Journal.close()
	v.leaveEpoch()
}

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
