// Package raw is a volume on a block device: a disk, a partition, a loop
// device, a logical volume of the kernel.
//
// The device is mapped like a file and lent to be read from the page cache. It is opened
// with O_EXCL, so that it cannot be mounted, or used by another target, while
// it is served. Growing (an enlarged logical volume) is noticed within a second.
package raw

import (
	"errors"
	"fmt"
	"path/filepath"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"softiser/blockdev"
	"softiser/blockdev/internal/backing"
)

// Config describes a raw volume. Zero fields have the defaults stated.
type Config struct {
	Path string
	// Size in bytes, at most that of the device. 0: all of it, and the volume
	// grows when the device does.
	Size          int64
	BlockSize     int // the device's logical block size
	PhysBlockSize int // the device's physical block size
	ReadOnly      bool
	WriteThrough  bool           // every write is durable before it completes
	Rotational    bool           // report that seeks cost, whatever the disk below says
	Lock          bool           // keep what is in memory there (mlock); counts against RLIMIT_MEMLOCK
	Pool          *blockdev.Pool // blockdev.DefaultPool
	// EpochDir is where it is remembered what has become of unflushed writes, so
	// that Info.CacheID can be told; "": nowhere.
	EpochDir string
	// Opened is the device as another process has it open. Its descriptor is taken over,
	// also when Open fails.
	Opened *blockdev.Opened
}

// Device is an open raw volume. The methods are those of blockdev.Device,
// Lender and Mapped.
type Device struct{ *backing.Volume }

// Open opens the block device.
func Open(cfg Config) (*Device, error) {
	d, err := open(cfg)
	if err != nil {
		return nil, fmt.Errorf("raw volume %s: %w", cfg.Path, err)
	}
	return d, nil
}

// open opens the block device exclusively, asks the kernel for its geometry and limits,
// and puts the backing volume on it.
func open(cfg Config) (*Device, error) {
	fd, err := -1, error(nil)
	if cfg.Opened != nil {
		fd = cfg.Opened.FD
	} else if fd, err = openDevice(cfg); err != nil {
		return nil, err
	}
	info, follow, err := describe(fd, cfg)
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	if o := cfg.Opened; o != nil {
		info.ID, info.Size = o.ID, min(info.Size, o.Size)
	}
	v, err := backing.Open(backing.Config{
		FD:           fd,
		Path:         cfg.Path,
		Pool:         cfg.Pool,
		Info:         info,
		WriteThrough: cfg.WriteThrough,
		Local:        true,
		Follow:       follow,
		Lock:         cfg.Lock,
		EpochDir:     cfg.EpochDir,
		Opened:       cfg.Opened,
		StoreSize:    func() (int64, error) { return deviceSize(fd) },
		Punch:        func(off, n int64) error { return ioctlRange(fd, unix.BLKDISCARD, off, n) },
		Zero:         func(off, n int64) error { return ioctlRange(fd, unix.BLKZEROOUT, off, n) },
	})
	if err != nil {
		return nil, err
	}
	return &Device{v}, nil
}

func openDevice(cfg Config) (int, error) {
	flags := unix.O_RDWR | unix.O_EXCL
	if cfg.ReadOnly {
		// Without O_EXCL, several readers may share the device, with a writer
		// on the same machine too: that is for the operator to decide.
		flags = unix.O_RDONLY
	}
	fd, err := openPatiently(cfg.Path, flags|unix.O_CLOEXEC|unix.O_NONBLOCK, func() { time.Sleep(busyPause) })
	switch {
	case errors.Is(err, unix.EBUSY):
		return -1, fmt.Errorf("mounted, or used by another program (see lsblk %s): %w", cfg.Path, blockdev.ErrInUse)
	case err != nil:
		return -1, fmt.Errorf("open: %w", err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("fstat: %w", err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFBLK {
		unix.Close(fd)
		return -1, errors.New("not a block device; regular files are volumes of type file")
	}
	return fd, nil
}

// A device that has just been closed may be in use for a moment: a child of this process, or of the one that had it,
// has the descriptor between fork and exec.
const (
	busyTries = 5
	busyPause = 10 * time.Millisecond
)

// openPatiently is open(2) that tries again, with a pause, what is in use.
func openPatiently(path string, flags int, pause func()) (fd int, err error) {
	for range busyTries {
		if fd, err = unix.Open(path, flags, 0); !errors.Is(err, unix.EBUSY) {
			return fd, err
		}
		pause()
	}
	return fd, err
}

// describe reads the device's geometry and compares it with what is wanted.
func describe(fd int, cfg Config) (info blockdev.Info, follow bool, err error) {
	size, err := deviceSize(fd)
	if err != nil {
		return info, false, fmt.Errorf("BLKGETSIZE64: %w", err)
	}
	logical, err := unix.IoctlGetInt(fd, unix.BLKSSZGET)
	if err != nil {
		return info, false, fmt.Errorf("BLKSSZGET: %w", err)
	}
	physical, err := unix.IoctlGetInt(fd, unix.BLKPBSZGET)
	if err != nil {
		return info, false, fmt.Errorf("BLKPBSZGET: %w", err)
	}
	if cfg.BlockSize == 0 {
		cfg.BlockSize = logical
	}
	if cfg.BlockSize < logical {
		return info, false, fmt.Errorf("the block size of %d bytes is less than the device's own of %d", cfg.BlockSize, logical)
	}
	if cfg.PhysBlockSize == 0 {
		cfg.PhysBlockSize = max(physical, cfg.BlockSize)
	}
	follow = cfg.Size == 0
	if follow {
		cfg.Size = size &^ int64(cfg.BlockSize-1)
	}
	if cfg.Size > size {
		return info, false, fmt.Errorf("the device has %d bytes, less than the configured size of %d", size, cfg.Size)
	}
	if err := blockdev.CheckGeometry(cfg.Size, cfg.BlockSize, cfg.PhysBlockSize); err != nil {
		return info, false, err
	}
	if ro, err := unix.IoctlGetInt(fd, unix.BLKROGET); err == nil && ro != 0 && !cfg.ReadOnly {
		return info, false, fmt.Errorf("the device is write-protected; make the volume read-only: %w", blockdev.ErrReadOnly)
	}
	path, err := filepath.EvalSymlinks(cfg.Path)
	if err != nil {
		return info, false, err
	}
	if path, err = filepath.Abs(path); err != nil {
		return info, false, err
	}
	q := queueOf(fd)
	return blockdev.Info{
		Size:          cfg.Size,
		BlockSize:     cfg.BlockSize,
		PhysBlockSize: cfg.PhysBlockSize,
		ReadOnly:      cfg.ReadOnly,
		WriteCache:    !cfg.WriteThrough,
		Discard:       !cfg.ReadOnly && q.discardMax > 0,
		DiscardAlign:  max(q.discardGranularity, cfg.BlockSize),
		// Linux promises nothing about discarded sectors of a device
		// (discard_zeroes_data has been 0 for every device since 4.12).
		ZeroesOnTrim: false,
		Rotational:   cfg.Rotational || q.rotational,
		Resident:     cfg.Lock,
		Backend:      "raw",
		ID:           path,
	}, follow, nil
}

func deviceSize(fd int) (int64, error) {
	var n uint64
	if err := ioctl(fd, unix.BLKGETSIZE64, unsafe.Pointer(&n)); err != nil {
		return 0, err
	}
	return int64(n), nil
}

// ioctlRange runs BLKDISCARD or BLKZEROOUT. Both drop the page cache of the
// range first, so a mapping sees the result.
func ioctlRange(fd int, request uint, off, n int64) error {
	r := [2]uint64{uint64(off), uint64(n)}
	return ioctl(fd, request, unsafe.Pointer(&r))
}

func ioctl(fd int, request uint, arg unsafe.Pointer) error {
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(request), uintptr(arg)); e != 0 {
		return e
	}
	return nil
}
