// Package backing is what the file, memory and raw backends share: a volume
// over a file descriptor that can be mapped.
//
//	LeaseRead   NoWait: page table → mapping, zero region, or ErrWouldBlock
//	            Wait:   also SEEK_DATA, MADV_POPULATE_READ
//	LeaseWrite  NoWait: page table → mapping, or pool memory
//	            Wait:   also MADV_POPULATE_WRITE, which reserves space
//	ReadAt, WriteAt, staged commits   pread, pwritev on the descriptor
//	Flush; FUA                        fdatasync; msync(MS_SYNC) behind the write
//
// No Go code ever loads from or stores to the mapping. System calls do, and
// where the file has shrunk or the disk is full they return EFAULT where Go code
// would die of SIGBUS.
//
// The package is for Linux: it needs its fallocate, SEEK_DATA and madvise.
package backing

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

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

// Volume is an open volume. It implements blockdev.Device, Lender, Resizer, Eraser
// and Mapped.
type Volume struct {
	cfg      Config
	sys      kernel
	fd       int
	mem      []byte // the mapping: the size now, and room to grow
	page     int64
	pool     *blockdev.Pool
	patience time.Duration
	ranges   blockdev.Ranges
	pages    *pages
	mask     int64 // block size - 1

	size     atomic.Int64 // bytes; 0 when closed
	closed   atomic.Bool
	poisoned atomic.Bool
	syncs    syncs
	// noPopulate is set when the kernel turns out to lack MADV_POPULATE_*
	// (before 5.14), noReserve when the file system has no fallocate either.
	noPopulate atomic.Bool
	noReserve  atomic.Bool

	notRAM func() // takes mem out of what is known to be RAM

	record string // file of the cacheRecord; "" without one

	hooks blockdev.ResizeHooks

	// resizeMu serialises resizes and Close. opMu is held shared by what uses
	// the descriptor without a lent range, and exclusively by Close, so that
	// nothing reads or writes a descriptor number that has been reused.
	// Order: resizeMu, opMu, ranges; nothing is waited for under opMu for
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
		cfg:      cfg,
		sys:      sys,
		fd:       cfg.FD,
		page:     int64(unix.Getpagesize()),
		pool:     cfg.Pool,
		patience: cfg.Patience,
		mask:     int64(cfg.Info.BlockSize - 1),
	}
	if v.pool == nil {
		v.pool = blockdev.DefaultPool()
	}
	if v.patience == 0 {
		v.patience = DefaultPatience
	}
	if v.mem, err = mapStore(cfg.FD, cfg.Info.Size, v.page, cfg.Info.ReadOnly); err != nil {
		return nil, fmt.Errorf("blockdev: mapping %s (%d bytes): %w", cfg.Path, cfg.Info.Size, err)
	}
	if v.pages, err = newPages(int64(len(v.mem)), int(v.page), cfg.HolesKnown); err != nil {
		unix.Munmap(v.mem)
		return nil, fmt.Errorf("blockdev: %s: %w", cfg.Path, err)
	}
	// Hints only. A crash dump must not contain the volumes.
	v.sys.madvise(v.mem, unix.MADV_DONTDUMP)
	if cfg.HugePages {
		v.sys.madvise(v.mem, unix.MADV_HUGEPAGE)
	}
	if cfg.Lock {
		if err := v.lock(0, cfg.Info.Size); err != nil {
			v.pages.close()
			unix.Munmap(v.mem)
			return nil, err
		}
	}
	if cfg.Opened != nil {
		if err := v.adopt(cfg.Opened); err != nil {
			v.pages.close()
			unix.Munmap(v.mem)
			return nil, err
		}
	} else if cfg.EpochDir != "" && cfg.Info.WriteCache && !cfg.Info.ReadOnly && !cfg.Volatile {
		name := recordName(cfg.EpochDir, cfg.Info.ID)
		if v.cfg.Info.CacheID = takeCache(name, homeOf(v.fd)); v.cfg.Info.CacheID != "" {
			v.record = name
		}
	}
	v.notRAM = func() {}
	if cfg.Volatile && len(v.mem) > 0 {
		v.notRAM = resident.Add(v.mem)
	}
	v.size.Store(cfg.Info.Size)
	if cfg.StoreSize != nil {
		watch(v)
	}
	return v, nil
}

// mapStore maps the store and, behind its end, address space for growing: a
// mapping may be longer than its file, and what is lent must never move.
func mapStore(fd int, size, page int64, readOnly bool) ([]byte, error) {
	prot := unix.PROT_READ | unix.PROT_WRITE
	if readOnly {
		prot = unix.PROT_READ
	}
	exact := (size + page - 1) &^ (page - 1)
	// File systems bound the length of files, processes that of address space.
	for _, n := range []int64{max(4*exact, exact+growthRoom), 2 * exact, exact} {
		if n < exact || n != int64(int(n)) {
			continue
		}
		mem, err := unix.Mmap(fd, 0, int(n), prot, unix.MAP_SHARED|unix.MAP_NORESERVE)
		if err == nil || n == exact {
			return mem, err
		}
	}
	return nil, unix.ENOMEM
}

// lock keeps the pages of [off, end) in memory from the moment they are first
// used; nothing is read ahead. The kernel counts the whole range against the
// process's limit at once.
func (v *Volume) lock(off, end int64) error {
	off, end = v.floor(off), v.ceil(end)
	if off == end {
		return nil
	}
	err := v.sys.mlock(v.mem[off:end])
	if err == nil {
		return nil
	}
	limit := "unknown"
	var r unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_MEMLOCK, &r) == nil {
		limit = fmt.Sprintf("%d bytes", r.Cur)
	}
	return fmt.Errorf("blockdev: %s: locking %d bytes in memory: %w; the limit of the process is %s (ulimit -l, LimitMEMLOCK= of a systemd unit): raise it, or do not lock the volume", v.cfg.Path, end-off, err, limit)
}

// growthRoom is the least room to grow, bytes. It costs address space only.
const growthRoom = 64 << 30

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
	// From here no lease can be added: each looks at the size after it has
	// entered its range.
	size := v.size.Swap(0)
	v.closed.Store(true)
	if n := v.ranges.Open(); n != 0 {
		v.closed.Store(false)
		v.size.Store(size)
		return fmt.Errorf("blockdev: %s: %d ranges are still in use: %w", v.cfg.Path, n, blockdev.ErrInUse)
	}
	if v.cfg.StoreSize != nil {
		unwatch(v)
	}
	v.opMu.Lock()
	defer v.opMu.Unlock()
	err := v.leave(size)
	v.notRAM()
	return errors.Join(err, unix.Munmap(v.mem), v.pages.close(), unix.Close(v.fd))
}

// leave flushes the store for the last time, if the next opening is to know how that
// went.
func (v *Volume) leave(size int64) error {
	if v.record == "" {
		return nil
	}
	if err := v.sync("fdatasync", 0, size, func() error { return v.sys.fdatasync(v.fd) }); err != nil {
		// The failed sync has tried to remove the record already; try once more.
		return errors.Join(err, dropRecord(v.record))
	}
	return leaveCache(v.record, v.cfg.Info.CacheID)
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

// check validates a range against the size now.
func (v *Volume) check(off, n int64) error {
	size := v.size.Load()
	if off < 0 || n < 0 || off > size || n > size-off {
		if v.closed.Load() {
			return blockdev.ErrClosed
		}
		return blockdev.ErrOutOfRange
	}
	if (off|n)&v.mask != 0 {
		return blockdev.ErrUnaligned
	}
	return nil
}

// fail makes the error of a system call on a range.
func (v *Volume) fail(op string, off, n int64, cause error) error {
	return &blockdev.Error{Op: op, Store: v.cfg.Path, Off: off, Len: n, Kind: blockdev.KindOf(cause), Cause: cause}
}

// floor and ceil round to pages.
func (v *Volume) floor(n int64) int64 { return n &^ (v.page - 1) }
func (v *Volume) ceil(n int64) int64  { return (n + v.page - 1) &^ (v.page - 1) }
