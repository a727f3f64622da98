package scsi

import (
	"context"
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"

	spc "softiser/internal/scsi"

	"softiser/blockdev"
)

// LUConfig describes a logical unit. The zero value of every optional field
// means the stated default.
type LUConfig struct {
	LUN    uint16
	Volume blockdev.Device // nil only for a removable unit without a medium

	Vendor   string // 8 characters; default "SOFTISER"
	Product  string // 16 characters; default "VIRTUAL-DISK"
	Revision string // 4 characters; default "1.0"
	// Serial, NAA and EUI override the identity that is otherwise derived from
	// the volume's ID; see identity.go.
	Serial string
	NAA    []byte // 8 or 16 bytes whose first nibble is 2, 3, 5 or 6
	EUI    []byte // 8, 12 or 16 bytes

	// Placement says whether the data of WRITEs is received into the volume itself
	// or checked first; default direct.
	Placement Placement

	ReadOnly  bool // write-protected for every initiator
	Removable bool
	Workers   int // most goroutines that wait for this volume; default 8
	QoS       QoS
	// MaxTransfer is the longest READ or WRITE, bytes; default 16 MiB.
	MaxTransfer int
	// Access is the asymmetric access state that the unit has at first through
	// each target port group; key 0 stands for the groups that are not named.
	// Default: the state of the group.
	Access map[uint16]AccessState
}

const (
	defaultWorkers     = 8
	defaultMaxTransfer = 16 << 20
	// A longer WRITE is fetched and committed in such pieces. Staging memory is
	// shared by all volumes.
	directChunk   = 4 << 20
	verifiedChunk = blockdev.MaxBuffer
)

// gates are conditions of a logical unit that refuse commands; a command's mask
// tells which ones concern it.
const (
	gateNoMedium  = 1 << iota // 2/3A
	gateSanitize              // 2/04/1B
	gateSanFailed             // 3/31/03
	gateReadOnly              // 7/27/00
	gateSWP                   // 7/27/02
	gateFormat                // 2/04/04
	gateCorrupt               // 3/31/00
	gateSelfTest              // 2/04/09
	gateMedium    = gateNoMedium | gateSanitize | gateSanFailed | gateFormat | gateCorrupt
	gateWrite     = gateMedium | gateReadOnly | gateSWP
)

// LU is a logical unit.
type LU struct {
	dev *Device
	lun uint16
	cfg LUConfig
	vol blockdev.Device // nil: no medium
	id  identity

	lender   writeLender // vol, or verifier
	verifier *verifier   // nil: placement is direct

	epoch    [16]byte  // of what is acknowledged and not flushed, see epoch.go; immutable
	keeps    bool      // the files of StateDir that id.key names are this unit's
	closing  sync.Once // of close
	paths    []path    // by index of the target port group
	geometry atomic.Pointer[geometry]
	gate     atomic.Uint32
	modes    modes
	pr       atomic.Pointer[reservations] // immutable; never nil
	legacy   atomic.Pointer[Nexus]        // holder of RESERVE(6)
	stats    counters
	rewriter rewriter
	copies   copyResults
	journal  undoJournal
	erased   atomic.Bool  // every block is deallocated: nothing has been written since a block erase
	users    atomic.Int64 // tasks between Execute and Release
	gone     atomic.Bool  // removed from its device
	flushes  atomic.Int64 // requests for flushBehind
	stop     func()       // ends the notifications of the volume
	space    spaceWatch
	added    time.Time

	prefetches atomic.Int32 // that go on behind their status
	selfTest   selfTest

	prMu    sync.Mutex // serialises changes of pr and of saved state
	unsaved bool       // guarded by prMu: the last attempt to save state failed, the file may be older or newer

	mu          sync.Mutex // guards everything below
	itls        map[*Nexus]*itl
	past        tallies // latencies of nexuses that are gone
	first, last *Task   // the task set, oldest first
	nEnabled    int     // tasks that have started
	nOrdered    int     // of these: ORDERED and HEAD OF QUEUE
	dormantHead *Task
	dormantTail *Task
	exclusives  []*Task // announced, in order
	claims      []*claim
	copying     map[*copying][]*tmfWait // the copies that touch the unit, and who waits for the end of each
	announced   uint64                  // exclusives and claims so far
	prevented   map[*Nexus]bool
	limit       limiter

	work        sync.Cond // on mu: the worker queue has grown, a worker has ended, closed
	queueHead   *Task
	queueTail   *Task
	workers     int
	maxWorkers  int
	idleWorkers int
	wakeups     int
	closed      bool
}

// geometry is the size of the medium as commands see it.
type geometry struct {
	info   blockdev.Info
	blocks uint64
	shift  uint8 // log2 of the block size
}

func (lu *LU) writeChunkBytes() int64 {
	if lu.verifier != nil {
		return verifiedChunk
	}
	return directChunk
}

func (lu *LU) geo() *geometry { return lu.geometry.Load() }

func newLU(d *Device, cfg LUConfig) (*LU, error) {
	if cfg.Volume == nil && !cfg.Removable {
		return nil, fmt.Errorf("target %s, LUN %d: no volume; only a removable unit may be without one", d.cfg.Name, cfg.LUN)
	}
	if cfg.LUN > 16383 {
		return nil, fmt.Errorf("target %s, LUN %d: the largest LUN is 16383", d.cfg.Name, cfg.LUN)
	}
	setDefault(&cfg.Vendor, "SOFTISER")
	setDefault(&cfg.Product, "VIRTUAL-DISK")
	setDefault(&cfg.Revision, "1.0")
	if int(cfg.Placement) >= len(placementNames) {
		return nil, fmt.Errorf("target %s, LUN %d: %v is not known", d.cfg.Name, cfg.LUN, cfg.Placement)
	}
	if cfg.Workers <= 0 {
		cfg.Workers = defaultWorkers
	}
	if cfg.MaxTransfer <= 0 {
		cfg.MaxTransfer = defaultMaxTransfer
	}
	lu := &LU{dev: d, lun: cfg.LUN, cfg: cfg, vol: cfg.Volume, itls: map[*Nexus]*itl{}, prevented: map[*Nexus]bool{}}
	lu.work.L = &lu.mu
	lu.maxWorkers = cfg.Workers
	lu.rewriter.cancel = make(chan struct{})
	if lu.lender = lu.vol; cfg.Placement == PlacementVerified && lu.vol != nil {
		lu.verifier = &verifier{lu: lu, pool: d.cfg.Staging}
		lu.lender = lu.verifier
	}
	lu.copies.room = make(chan struct{}, cfg.Workers)
	info := volumeInfo(cfg.Volume)
	if info.BlockSize < 512 || info.BlockSize&(info.BlockSize-1) != 0 || cfg.Volume != nil && info.Size < int64(info.BlockSize) {
		return nil, fmt.Errorf("target %s, LUN %d: volume of %d bytes with blocks of %d cannot be a disk", d.cfg.Name, cfg.LUN, info.Size, info.BlockSize)
	}
	var err error
	if lu.id, err = newIdentity(&cfg, info, d.cfg.Name); err != nil {
		return nil, fmt.Errorf("target %s, LUN %d: %w", d.cfg.Name, cfg.LUN, err)
	}
	lu.setGeometry(info)
	if err = d.cfg.Units.take(lu); err != nil {
		return nil, fmt.Errorf("target %s, LUN %d: %w", d.cfg.Name, cfg.LUN, err)
	}
	defer func() {
		if err != nil {
			d.cfg.Units.give(lu)
		}
	}()
	if err = lu.initPaths(cfg.Access); err != nil {
		return nil, fmt.Errorf("target %s, LUN %d: %w", d.cfg.Name, cfg.LUN, err)
	}
	lu.space.init(lu)
	lu.modes.init(lu)
	lu.added = time.Now()
	lu.limit.init(cfg.QoS)
	if cfg.Volume == nil {
		lu.gate.Store(gateNoMedium)
	}
	if info.ReadOnly || cfg.ReadOnly {
		lu.setGate(gateReadOnly, true)
	}
	if err = lu.loadState(); err != nil {
		return nil, fmt.Errorf("target %s, LUN %d: %w", d.cfg.Name, cfg.LUN, err)
	}
	if err = lu.undo(); err != nil {
		return nil, fmt.Errorf("target %s, LUN %d: %w", d.cfg.Name, cfg.LUN, err)
	}
	if err = lu.takeEpoch(); err != nil {
		return nil, fmt.Errorf("target %s, LUN %d: %w", d.cfg.Name, cfg.LUN, err)
	}
	if lu.vol != nil {
		lu.stop = lu.vol.OnResize(func(i blockdev.Info) {
			lu.setGeometry(i)
			lu.attention(spc.ASCCapacityChanged, nil)
		})
		if low, ok := lu.vol.(blockdev.LowSpace); ok {
			lu.alsoStop(low.OnLowSpace(lu.lowSpace))
		}
		if m := lu.space.meter; m != nil {
			lu.alsoStop(m.OnSpaceChange(lu.checkSpace))
		}
	}
	return lu, nil
}

// alsoStop adds a notification of the volume that ends with the unit.
func (lu *LU) alsoStop(cancel func()) {
	rest := lu.stop
	lu.stop = func() { rest(); cancel() }
}

func setDefault(s *string, v string) {
	if *s == "" {
		*s = v
	}
}

func (lu *LU) setGeometry(info blockdev.Info) {
	// A unit that nobody may write is not one that cannot unmap: UNMAP is there,
	// and refused as a write is.
	info.Discard = info.Discard || info.ReadOnly
	g := &geometry{info: info, shift: uint8(bits.TrailingZeros(uint(info.BlockSize)))}
	g.blocks = uint64(info.Size) >> g.shift
	lu.geometry.Store(g)
}

func (lu *LU) setGate(g uint32, on bool) {
	if on {
		lu.gate.Or(g)
	} else {
		lu.gate.And(^g)
	}
}

// LUN returns the unit's number.
func (lu *LU) LUN() uint16 { return lu.lun }

// use keeps the unit's volume open until the caller counts users down again; it
// reports false when the unit has been removed.
func (lu *LU) use() bool {
	lu.users.Add(1)
	if lu.gone.Load() {
		lu.users.Add(-1)
		return false
	}
	return true
}

// drain waits until no task uses the unit any more, then ends its workers. If ctx
// ends first, they end when the last task does.
func (lu *LU) drain(ctx context.Context) error {
	lu.gone.Store(true)
	lu.rewriter.stop()
	if err := lu.waitUnused(ctx); err != nil {
		go func() {
			lu.waitUnused(context.Background())
			lu.close()
		}()
		return fmt.Errorf("LUN %d: %d commands still hold the volume: %w", lu.lun, lu.users.Load(), err)
	}
	lu.close()
	return nil
}

// close ends the workers. Preconditions: no tasks.
func (lu *LU) close() { lu.closing.Do(lu.shut) }

func (lu *LU) shut() {
	if lu.stop != nil {
		lu.stop()
	}
	lu.mu.Lock()
	lu.closed = true
	lu.limit.stop()
	lu.work.Broadcast()
	for lu.workers > 0 {
		lu.work.Wait()
	}
	lu.mu.Unlock()
	lu.journal.close()
	lu.leaveEpoch()
	lu.dev.cfg.Units.give(lu)
	lu.dev.left(lu)
}

// touched notes that the volume is about to be written.
func (lu *LU) touched() {
	if lu.erased.Load() {
		lu.erased.Store(false)
	}
}
