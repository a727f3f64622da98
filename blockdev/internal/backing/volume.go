// Package backing is what the file, memory and raw backends share: a volume
// over a file descriptor that can be mapped.
//
//	LeaseRead   NoWait: page table, mincore → mapping, zero region, or ErrWouldBlock
//	            Wait:   also SEEK_DATA, pread, or posix_fadvise and MADV_POPULATE_READ (ADR 219)
//	Announce    posix_fadvise(WILLNEED), for short reads that are to come
//	LeaseWrite  files and devices: pool memory (ADR 218)
//	            memory:  page table → mapping; with Wait also MADV_POPULATE_WRITE, which reserves space
//	ReadAt, WriteAt, staged commits   pread, pwritev on the descriptor
//	Flush; FUA                        fdatasync; msync(MS_SYNC) behind the write
//
// System calls load from the mapping and store to it: where the file has shrunk or the
// disk is full they return EFAULT where Go code would die of SIGBUS. The one copy by Go
// code, of short writes to a volume in memory (place.go), is guarded against that.
//
// The package is for Linux: it needs its fallocate, SEEK_DATA and madvise.
package backing

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dustin/go-humanize/english"
	"golang.org/x/sys/unix"

	"softiser/blockdev"
	"softiser/internal/resident"
)

// Config describes a volume over an open descriptor.
type Config struct {
	FD   int           // taken over by Open, also when it fails
	Info blockdev.Info // geometry and capabilities, checked by the caller
	Path string        // for messages
	Pool *blockdev.Pool

	WriteThrough bool // no command ends before its data is durable
	Volatile     bool // nothing survives the process: flushing is meaningless
	Prealloc     bool // space is reserved, holes are not welcome
	HolesKnown   bool // the store began as one hole and nobody else writes to it
	SeekHoles    bool // SEEK_DATA and SEEK_HOLE work
	Local        bool // StoreSize is known to wait for nobody, and readahead to begin at once and to read what it was asked for
	Marks        bool // the store has extended attributes of its own, unless its file system has none
	HugePages    bool // ask for transparent huge pages
	Lock         bool // keep what is in memory there (mlock)
	Follow       bool // take the size from the store when it grows
	// EpochDir is the folder for the record of what may have become of the cache
	// between two openings (see cacheRecord); "" keeps none.
	EpochDir string
	// Opened, when set, is what another process has handed over: FD is of it, and what it
	// says of the cache is not looked up again.
	Opened *blockdev.Opened

	// StoreSize returns how long the store is now; nil for one that only this
	// process can change.
	StoreSize func() (int64, error)
	// Truncate changes the length of the store; nil: it cannot be changed
	// from here (a raw device).
	Truncate func(n int64) error
	// Punch deallocates and Zero writes zeroes; both make the range read as
	// zeroes. nil: not supported.
	Punch func(off, n int64) error
	Zero  func(off, n int64) error
	// Patience bounds the wait for leases of peers; 0: DefaultPatience.
	Patience time.Duration
}

// DefaultPatience is how long a copy into the device waits for overlapping
// direct leases.
const DefaultPatience = time.Second

// Volume is an open volume. It implements blockdev.Device, Lender, Resizer, Eraser,
// Announcer, Marker and Mapped.
type Volume struct {
	mapped     // the store
	durability // what has reached it for good

	ranges   blockdev.Ranges // what is lent, and who copies
	patience time.Duration
	hooks    blockdev.ResizeHooks
	notRAM   func()      // takes mem out of what is known to be RAM
	looked   atomic.Bool // the watcher looks at the store
	handed   atomic.Bool // another process may have the store open, and its lock

	// resizeMu guards the length of the store: it serialises resizes and Close.
	// opMu guards the descriptor: it is held shared by what uses it without a
	// lent range, and exclusively by Close, so that nothing reads or writes a
	// descriptor number that has been reused.
	// Order: resizeMu, opMu, deciding, ranges; nothing is waited for under opMu for
	// longer than storage takes or the patience lasts.
	resizeMu sync.Mutex
	opMu     sync.RWMutex
}

// Open maps a volume.
func Open(cfg Config) (*Volume, error) { return open(cfg, linux) }

// open maps the store and starts what watches it. cfg.FD belongs to the volume, and is
// closed when open fails.
func open(cfg Config, sys kernel) (_ *Volume, err error) {
	defer func() {
		if err != nil {
			unix.Close(cfg.FD)
		}
	}()
	v := &Volume{
		mapped: mapped{
			cfg:  cfg,
			sys:  sys,
			fd:   cfg.FD,
			page: int64(unix.Getpagesize()),
			pool: cfg.Pool,
			mask: int64(cfg.Info.BlockSize - 1),
		},
		patience: cfg.Patience,
	}
	if cfg.Volatile && cfg.HolesKnown {
		v.cfg.Info.ExactWrite = placeMax
	}
	v.durability.mapped = &v.mapped
	if v.pool == nil {
		v.pool = blockdev.DefaultPool()
	}
	if v.patience == 0 {
		v.patience = DefaultPatience
	}
	if err = v.mapAll(); err != nil {
		return nil, err
	}
	// Hints only. A crash dump must not contain the volumes.
	v.sys.madvise(v.mem, unix.MADV_DONTDUMP)
	if cfg.HugePages {
		v.sys.madvise(v.mem, unix.MADV_HUGEPAGE)
	}
	if cfg.Lock {
		if err := v.lock(0, cfg.Info.Size); err != nil {
			v.unmap()
			return nil, err
		}
	}
	if cfg.Opened != nil {
		if err := v.adopt(cfg.Opened); err != nil {
			v.unmap()
			return nil, err
		}
	} else {
		v.takeRecord()
	}
	v.notRAM = func() {}
	if cfg.Volatile && len(v.mem) > 0 {
		v.notRAM = resident.Add(v.mem)
	}
	v.grow(cfg.Info.Size)
	if cfg.StoreSize != nil {
		watch(v)
	}
	return v, nil
}

// takeRecord finds out what the record of the cache says, and keeps it from now on.
func (v *Volume) takeRecord() {
	name := v.cfg.cacheRecord()
	if name == "" {
		return
	}
	if v.cfg.Info.WriteCache {
		v.cfg.Info.CacheID = takeCache(name, homeOf(v.fd))
	}
	if v.cfg.Info.CacheID != "" || stands(name) {
		v.record = name
	}
}

// cacheRecord is the file of the record of the cache; "" if there is none to keep.
func (cfg *Config) cacheRecord() string {
	if cfg.EpochDir == "" || cfg.Info.ReadOnly || cfg.Volatile {
		return ""
	}
	return recordName(cfg.EpochDir, cfg.Info.ID)
}

// Info implements blockdev.Device.
func (v *Volume) Info() blockdev.Info {
	info := v.cfg.Info
	info.Size = v.size.Load()
	return info
}

// Mapping implements blockdev.Mapped. What lies beyond the device's size is
// room to grow and may not be touched, not even by system calls that matter.
func (v *Volume) Mapping() []byte { return v.mem }

// OnResize implements blockdev.Device.
func (v *Volume) OnResize(f func(blockdev.Info)) (cancel func()) { return v.hooks.Add(f) }

// Close implements blockdev.Device. It fails with ErrInUse while direct leases
// are open, because their memory would vanish.
func (v *Volume) Close() error {
	v.resizeMu.Lock()
	defer v.resizeMu.Unlock()
	if v.closed.Load() {
		return blockdev.ErrClosed
	}
	// No lease can be added meanwhile: each looks at the limit after it has
	// entered its range.
	size := v.size.Load()
	err := v.decide(0, func() error {
		if n := v.ranges.Open(); n != 0 {
			return fmt.Errorf("blockdev: %s: %s still in use: %w", v.cfg.Path, english.Plural(int(n), "range is", "ranges are"), blockdev.ErrInUse)
		}
		v.closed.Store(true)
		return nil
	})
	if err != nil {
		return err
	}
	if v.cfg.StoreSize != nil {
		unwatch(v)
	}
	v.opMu.Lock()
	defer v.opMu.Unlock()
	err = v.leave(size)
	v.cursors.close()
	v.notRAM()
	err = errors.Join(err, v.unmap())
	if !v.handed.Load() {
		_ = unix.Flock(v.fd, unix.LOCK_UN) // which closing does, but not beside a fork: its child has the descriptor until its exec
	}
	return errors.Join(err, unix.Close(v.fd))
}

// begin starts an operation that uses the descriptor; on success v.opMu is to be
// unlocked when it is over.
func (v *Volume) begin() error {
	v.opMu.RLock()
	if v.closed.Load() {
		v.opMu.RUnlock()
		return blockdev.ErrClosed
	}
	return nil
}
