// Package blockdev is the seam between what serves a volume, over whichever wire, and
// the memory or files that hold it.
//
// A [Device] does not copy: it lends memory. A read lease is a list of slices
// that hold the data of a byte range; for a volume that is mapped (a file, a
// raw device, RAM) these slices are the mapping itself, so that an RDMA Write,
// a Data-In or a C2HData goes from the volume's own pages to the socket. A write
// lease is a list of slices that the transport fills (RDMA Read, Data-Out, H2CData)
// before [Lease.Commit] makes them the content of the range: memory of a pool, which the commit
// writes, or the mapping, where the volume is memory (ADR 218).
//
// Small, staged or comparing commands (immediate and in-capsule data, VERIFY, COMPARE
// AND WRITE, WRITE SAME) use ReadAt and WriteAt, which are pread and pwrite on the
// backing file: Go code never touches a mapping, so a truncated or failing
// file is an error of that command and never a SIGBUS.
package blockdev

import "errors"

// Info describes a device. It changes only by a resize.
type Info struct {
	Size          int64  // bytes; a multiple of BlockSize
	BlockSize     int    // logical block, bytes: 512 or 4096
	PhysBlockSize int    // physical block, bytes; a multiple of BlockSize
	ReadOnly      bool   // every write fails with ErrReadOnly
	WriteCache    bool   // completed writes are volatile until Flush (SCSI WCE)
	Discard       bool   // Discard deallocates
	DiscardAlign  int    // preferred granularity of Discard, bytes; 0: unknown
	ZeroesOnTrim  bool   // discarded ranges read as zeroes (SCSI LBPRZ)
	Thin          bool   // space is allocated on first write
	Rotational    bool   // seeks cost
	Resident      bool   // what is in memory stays there (mlock)
	InPlace       bool   // write leases lend the memory of the volume itself, as far as it is theirs alone
	InTurn        bool   // concurrent calls of WriteAt are serialised by the kernel (the inode's lock)
	ExactWrite    int    // longest WriteAt, bytes, that claims only its own bytes where a write lease is direct; longer ones claim whole pages
	Backend       string // "file", "mem", "raw", "null", "lvm": for people
	CacheID       string // identity of the cache that holds what was not flushed; see below
	ID            string // stable identity of the content's home (path, UUID); the seed of WWIDs
}

// Info.CacheID tells whether completed writes that were not flushed may have been lost since
// the volume was last open: if CacheID is the same as then, none were. It is "" where that is
// not known, and where unflushed writes end with the process in any case.

// Mode tells a lease call whether it may block.
type Mode uint8

const (
	// NoWait makes a lease call fail with ErrWouldBlock instead of waiting for
	// storage, memory or another lease. The receive goroutine uses it.
	NoWait Mode = iota
	// Wait lets the call block (bounded by storage, never by a peer).
	Wait
	// Probe is NoWait for a LeaseWrite that only finds out whether WriteAt would wait: if the lease is
	// direct, it would not. A device that otherwise lends pool memory for writes lends its mapping
	// here. The caller stores nothing into it.
	Probe
)

// Device is one block volume. All methods are safe for concurrent use.
// Ranges must lie inside the device and be multiples of its logical block;
// otherwise the call fails with ErrOutOfRange or ErrUnaligned.
type Device interface {
	// Info returns the current geometry and capabilities.
	Info() Info

	// LeaseRead lends memory that holds [off, off+n), in bytes, until l.Release. l must be
	// free. After an error, ErrWouldBlock included, it is free still.
	LeaseRead(l *Lease, off int64, n int, m Mode) error

	// LeaseWrite lends memory for the new content of [off, off+n), in bytes; l as in
	// LeaseRead. The caller fills it, and calls l.Commit and l.Release. Until Commit has
	// returned the content of the range is undefined; without Commit, or if that fails, a
	// direct lease may have changed any part of it, as SCSI allows for a failed write.
	LeaseWrite(l *Lease, off int64, n int, m Mode) error

	// ReadAt and WriteAt copy between p and the device; they transfer all of p or fail.
	ReadAt(p []byte, off int64) (int, error)
	WriteAt(p []byte, off int64) (int, error)

	// Flush makes every completed write durable. A failed Flush poisons the device:
	// writes and flushes fail with ErrPoisoned until it is reopened.
	Flush() error

	// FlushRange makes completed writes of one range durable (FUA).
	FlushRange(off, n int64) error

	// Discard deallocates a range where Info.Discard says so, else ErrNotSupported.
	Discard(off, n int64) error

	// WriteZeroes makes a range read as zeroes; mayUnmap permits deallocation.
	WriteZeroes(off, n int64, mayUnmap bool) error

	// Extents reports the allocation of [off, off+n) in order, at least one
	// extent long; what is not known to be a hole counts as data.
	Extents(off, n int64) ([]Extent, error)

	// OnResize registers f to be called (on any goroutine, without locks held)
	// after the size has changed. The returned function removes it.
	OnResize(f func(Info)) (cancel func())

	// Close gives back the backing store. Open leases must have been released.
	Close() error
}

// Resizer is a device whose size can be changed on line.
type Resizer interface {
	// Resize changes the size to n bytes. Shrinking fails with ErrInUse while
	// leases are open beyond the new end, and then nobody else sees anything of it.
	Resize(n int64) error
}

// LowSpace is a device whose space is allocated on first write and may run out.
type LowSpace interface {
	// OnLowSpace registers f to be called (on any goroutine, without locks held)
	// when the space falls below a threshold. The returned function removes it.
	OnLowSpace(f func()) (cancel func())
}

// SpaceUsage is how full the space is that a device shares with others.
type SpaceUsage struct {
	Total, Used int64 // bytes; Total 0: the device takes all of its space when it is made
	Unit        int64 // what is allocated at once, bytes
}

// SpaceMeter is a device that says how full the space is which it takes on
// first write: a thin volume its pool.
type SpaceMeter interface {
	// SpaceUsage returns the present state; it never waits for storage for long.
	SpaceUsage() SpaceUsage
	// OnSpaceChange registers f to be called (on any goroutine, without locks
	// held) after Used or Total has changed; many changes may be one call, and
	// calls do not overlap. The returned function removes it.
	OnSpaceChange(f func()) (cancel func())
}

// Mapped is a device whose direct leases are all parts of one mapping, so that a
// transport can register that once.
type Mapped interface {
	// Mapping returns the whole mapped range: the device, and behind its end
	// room to grow, which must not be touched. It stays valid until Close; a
	// resize never moves it.
	Mapping() []byte
}

// Extent is a run of bytes of a device, Off and Len in bytes.
type Extent struct {
	Off, Len int64
	Data     bool // allocated; else a hole, which reads as zeroes
}

// Errors of devices. One table in target/scsi makes sense codes of them, one in target/nvmf status codes.
var (
	// ErrWouldBlock ends a call with NoWait that would have to wait: call again with
	// Wait, on a goroutine that may. With Wait it means that there was no staging memory,
	// and none came back for PoolPatience.
	ErrWouldBlock = errors.New("blockdev: would block")
	// ErrOutOfRange ends a call for bytes behind the end, perhaps since a resize.
	ErrOutOfRange = errors.New("blockdev: range beyond the end of the device")
	// ErrUnaligned ends a call for parts of blocks.
	ErrUnaligned = errors.New("blockdev: range is not a multiple of the block size")
	// ErrReadOnly ends what would change a device with Info.ReadOnly.
	ErrReadOnly = errors.New("blockdev: device is read-only")
	// ErrNoSpace ends a write for which nothing could be allocated; it may succeed
	// later.
	ErrNoSpace = errors.New("blockdev: no space left on the backing store")
	// ErrMedium ends what the backing store has failed at; repeating it is no use.
	ErrMedium = errors.New("blockdev: unrecoverable error of the backing store")
	// ErrPoisoned ends writes and flushes after a Flush that failed: the kernel may have
	// dropped what it could not write, and would tell nobody a second time.
	ErrPoisoned = errors.New("blockdev: an earlier flush failed; reopen the device")
	// ErrNotSupported ends an operation that this kind of device does not have.
	ErrNotSupported = errors.New("blockdev: operation not supported by this device")
	// ErrInUse ends the opening of a store that somebody else has locked, and closing or
	// shrinking while leases are out.
	ErrInUse = errors.New("blockdev: backing store is in use")
	// ErrClosed ends what comes after Close.
	ErrClosed = errors.New("blockdev: device is closed")
	// ErrInactive ends what comes to a volume that another node serves now.
	ErrInactive = errors.New("blockdev: the backing store is not open on this node")
)
