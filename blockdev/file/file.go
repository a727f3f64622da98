// Package file is a volume in a regular file, mapped into memory and lent to be read from
// there. It is written by system calls, unless it is on tmpfs.
//
// The file is locked exclusively while it is open for writing (shared for
// reading), so that two targets never serve it at once. A file that is
// truncated, on a full or failing disk, or unreadable costs the command that
// meets it, never the process: see blockdev/internal/backing.
package file

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"softiser/blockdev"
	"softiser/blockdev/internal/backing"
	"softiser/internal/durable"
)

// Config describes a file volume. Zero fields have the defaults stated.
type Config struct {
	Path string
	// Size in bytes. A missing file is created with it (sparse, unless
	// Prealloc), a shorter one is grown to it, a longer one is refused. 0: the
	// size of the existing file, and the volume grows when the file does.
	Size          int64
	MustExist     bool // do not create a missing file
	BlockSize     int  // 512
	PhysBlockSize int  // 4096
	ReadOnly      bool
	// WriteThrough makes every write durable before it completes, and says so
	// (no write cache).
	WriteThrough bool
	// Prealloc reserves space for the whole size, so that the disk cannot be
	// full later; what is discarded stays reserved, too.
	Prealloc   bool
	HugePages  bool           // ask for transparent huge pages (tmpfs)
	Rotational bool           // report that seeks cost, whatever the disk below says
	Lock       bool           // keep what is in memory there (mlock); counts against RLIMIT_MEMLOCK
	Pool       *blockdev.Pool // blockdev.DefaultPool
	// EpochDir is where it is remembered what has become of unflushed writes, so
	// that Info.CacheID can be told; "": nowhere.
	EpochDir string
	// Opened is the file as another process has it open: it is not looked for by its name,
	// locked or changed. Its descriptor is taken over, also when Open fails.
	Opened *blockdev.Opened
}

// Device is an open file volume. The methods are those of blockdev.Device,
// Lender, Resizer and Mapped.
type Device struct{ *backing.Volume }

// Open opens or creates the file.
func Open(cfg Config) (*Device, error) {
	d, err := open(cfg)
	if err != nil {
		return nil, fmt.Errorf("file volume %s: %w", cfg.Path, err)
	}
	return d, nil
}

// open opens or creates the file, locks it, and puts the backing volume on it.
func open(cfg Config) (*Device, error) {
	cfg.BlockSize = cmp.Or(cfg.BlockSize, 512)
	cfg.PhysBlockSize = cmp.Or(cfg.PhysBlockSize, max(4096, cfg.BlockSize))
	if cfg.Opened != nil {
		return goOn(cfg)
	}
	f, created, err := openFile(cfg)
	if err != nil {
		return nil, err
	}
	return take(cfg, f, created)
}

// take makes a volume of f, which it takes over. What fails leaves no file that has been created for
// it, unless somebody else was faster to lock that.
func take(cfg Config, f *os.File, created bool) (_ *Device, err error) {
	locked := false
	defer func() {
		if err != nil {
			if created && locked {
				os.Remove(cfg.Path) // while nobody else can lock it
			}
			f.Close()
		}
	}()
	if err := backing.Lock(f, cfg.ReadOnly); err != nil {
		return nil, err
	}
	locked = true
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, fmt.Errorf("fstat: %w", err)
	}
	if !stands(f, cfg.Path) {
		return nil, errors.New("the file has been removed or replaced while it was opened; try again")
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, errors.New("not a regular file; block devices are volumes of type raw")
	}
	follow := cfg.Size == 0
	if follow {
		if cfg.Size, err = sizeOf(st.Size, cfg.BlockSize); err != nil {
			return nil, err
		}
	}
	if err := blockdev.CheckGeometry(cfg.Size, cfg.BlockSize, cfg.PhysBlockSize); err != nil {
		return nil, err
	}
	// Before the file gets a size: one that has one has been here. Whoever has created it may have lost it to this
	// process, or its life.
	if created || st.Size == 0 {
		if err := syncFolder(filepath.Dir(cfg.Path)); err != nil {
			return nil, err
		}
	}
	if err := setSize(f, st.Size, cfg); err != nil {
		return nil, err
	}
	path, err := realPath(cfg.Path)
	if err != nil {
		return nil, err
	}
	// The volume has a descriptor of its own: that of f has a finalizer. A
	// duplicate shares the lock.
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("duplicating the descriptor: %w", err)
	}
	v, err := back(cfg, fd, &st, path, follow)
	if err != nil {
		return nil, err
	}
	f.Close()
	return v, nil
}

// stands reports whether name still leads to f.
func stands(f *os.File, name string) bool {
	st, err := f.Stat()
	now, nerr := os.Stat(name)
	return err == nil && nerr == nil && os.SameFile(st, now)
}

// sizeOf is the size of the volume in a file of n bytes: its whole blocks.
func sizeOf(n int64, block int) (int64, error) {
	size := n &^ int64(block-1)
	switch {
	case size > 0:
		return size, nil
	case n > 0:
		return 0, fmt.Errorf("the file has %d bytes, which is less than a block of %d; state a size to give it more", n, block)
	}
	return 0, errors.New("the file is empty; state a size to give it one")
}

// realPath is an absolute path without links, as far as that can be found out.
func realPath(name string) (string, error) {
	path, err := filepath.Abs(name)
	if err != nil {
		return "", err
	}
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	return path, nil
}

// goOn opens what another process has open.
func goOn(cfg Config) (*Device, error) {
	o := cfg.Opened
	var st unix.Stat_t
	err := unix.Fstat(o.FD, &st)
	if err == nil {
		err = blockdev.CheckGeometry(o.Size, cfg.BlockSize, cfg.PhysBlockSize)
	}
	if err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG {
		err = errors.New("what was handed over is not a regular file")
	}
	if err != nil {
		unix.Close(o.FD)
		return nil, err
	}
	follow := cfg.Size == 0
	cfg.Size = o.Size
	return back(cfg, o.FD, &st, o.ID, follow)
}

// back puts the backing volume on fd, which it takes over. st is what the file was before
// its size was set, id what it is known by.
func back(cfg Config, fd int, st *unix.Stat_t, id string, follow bool) (*Device, error) {
	fs := fileSystemOf(fd)
	local := fs.onLocalDisk()
	v, err := backing.Open(backing.Config{
		FD:   fd,
		Path: cfg.Path,
		Pool: cfg.Pool,
		Info: blockdev.Info{
			Size:          cfg.Size,
			BlockSize:     cfg.BlockSize,
			PhysBlockSize: cfg.PhysBlockSize,
			ReadOnly:      cfg.ReadOnly,
			WriteCache:    !cfg.WriteThrough,
			Discard:       !cfg.ReadOnly && canPunch(fd, st.Size),
			DiscardAlign:  max(int(st.Blksize), cfg.BlockSize),
			ZeroesOnTrim:  true,
			Thin:          !cfg.Prealloc,
			Rotational:    cfg.Rotational || backing.Rotational(st.Dev),
			Resident:      cfg.Lock,
			InPlace:       fs.inMemory(),
			InTurn:        !cfg.WriteThrough && fs.writesInTurn(),
			Backend:       "file",
			ID:            id,
		},
		WriteThrough: cfg.WriteThrough,
		Prealloc:     cfg.Prealloc,
		SeekHoles:    canSeekHoles(fd),
		Local:        local,
		Marks:        true,
		HugePages:    cfg.HugePages,
		Lock:         cfg.Lock,
		EpochDir:     cfg.EpochDir,
		Opened:       cfg.Opened,
		Follow:       follow,
		StoreSize:    func() (int64, error) { return lengthOf(fd) },
		Truncate: func(n int64) error {
			if cfg.Prealloc {
				have, err := lengthOf(fd)
				if err == nil {
					err = preallocate(fd, have, n)
				}
				if err != nil {
					return err
				}
			}
			return unix.Ftruncate(fd, n)
		},
		Punch: func(off, n int64) error {
			return unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, n)
		},
		Zero: func(off, n int64) error {
			return unix.Fallocate(fd, unix.FALLOC_FL_ZERO_RANGE|unix.FALLOC_FL_KEEP_SIZE, off, n)
		},
	})
	if err != nil {
		return nil, err
	}
	return &Device{v}, nil
}

// lengthOf returns how long the file is now, bytes. It is asked before each write, so not by fstat: a file whose
// times have been asked for gets new ones by its next write, and where these are fine-grained (ext4, xfs and btrfs since Linux 6.13)
// that is a change of the inode in the journal by every write. Nobody uses the position that lseek leaves.
func lengthOf(fd int) (int64, error) { return unix.Seek(fd, 0, unix.SEEK_END) }

// fileSystem is the magic number of the file system that a file is on; 0: it does not tell.
type fileSystem int64

func fileSystemOf(fd int) fileSystem {
	var fs unix.Statfs_t
	if unix.Fstatfs(fd, &fs) != nil {
		return 0
	}
	return fileSystem(fs.Type)
}

// writesInTurn reports whether it is known to let one write into the page cache of a file go at a time.
func (f fileSystem) writesInTurn() bool {
	return f == unix.EXT4_SUPER_MAGIC || f == unix.XFS_SUPER_MAGIC
}

// inMemory reports whether it keeps its files in memory alone.
func (f fileSystem) inMemory() bool { return f == unix.TMPFS_MAGIC }

// onLocalDisk reports whether it is known to keep its files on disks of this machine: it begins to read when it
// is advised to, and knows how long they are.
func (f fileSystem) onLocalDisk() bool {
	switch f {
	case unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.F2FS_SUPER_MAGIC, unix.OVERLAYFS_SUPER_MAGIC:
		return true
	}
	return false
}

// openFile opens the file, or makes it where that is asked for. Whoever finds that somebody else has just made it
// has not created it: who of them gets the lock has the volume.
func openFile(cfg Config) (f *os.File, created bool, err error) {
	flags := os.O_RDWR
	if cfg.ReadOnly {
		flags = os.O_RDONLY
	}
	// O_NONBLOCK: do not hang on a FIFO that somebody put there.
	f, err = os.OpenFile(cfg.Path, flags|unix.O_NONBLOCK, 0)
	if !errors.Is(err, os.ErrNotExist) || cfg.ReadOnly {
		return f, false, err
	}
	if devicePath(cfg.Path) { // a file there would take memory, and be gone after a restart
		return nil, false, fmt.Errorf("%w; there is no such device (lsblk), and no file is made in /dev", err)
	}
	if cfg.MustExist {
		return nil, false, fmt.Errorf("%w, and it may not be created (create: true in a configuration)", err)
	}
	if cfg.Size == 0 {
		return nil, false, errors.New("the file does not exist; state a size to create it")
	}
	f, err = os.OpenFile(cfg.Path, flags|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, os.ErrExist) { // somebody else was faster
		if theirs, err := os.OpenFile(cfg.Path, flags|unix.O_NONBLOCK, 0); err == nil {
			return theirs, false, nil
		}
	}
	return f, err == nil, err
}

// devicePath reports whether a path is that of a device. What is below /dev/shm and
// /dev/hugepages is files.
func devicePath(path string) bool {
	abs, err := filepath.Abs(path)
	if err != nil {
		return false
	}
	return strings.HasPrefix(abs, "/dev/") && !strings.HasPrefix(abs, "/dev/shm/") && !strings.HasPrefix(abs, "/dev/hugepages/")
}

// syncFolder makes the entry of a new file durable: what is flushed into the
// file later must not be lost with its name.
func syncFolder(path string) error {
	// Some file systems cannot sync folders, and say EINVAL.
	if err := durable.SyncDir(path); err != nil && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("making the new file durable: %w", err)
	}
	return nil
}

// setSize brings the file from have bytes to the configured size.
func setSize(f *os.File, have int64, cfg Config) error {
	fd := int(f.Fd())
	switch {
	case have > cfg.Size && have&^int64(cfg.BlockSize-1) != cfg.Size:
		return fmt.Errorf("the file has %d bytes, more than the configured size of %d; raise the size, or shorten the file yourself if its end is not needed", have, cfg.Size)
	case cfg.ReadOnly && have < cfg.Size:
		return fmt.Errorf("the file has %d bytes, less than the configured size of %d, and the volume is read-only", have, cfg.Size)
	case cfg.ReadOnly:
		return nil
	}
	if cfg.Prealloc {
		if err := preallocate(fd, have, cfg.Size); err != nil {
			return fmt.Errorf("reserving %d bytes: %w", cfg.Size, err)
		}
	}
	if have < cfg.Size {
		if err := unix.Ftruncate(fd, cfg.Size); err != nil {
			return fmt.Errorf("setting the size to %d bytes: %w", cfg.Size, err)
		}
	}
	return nil
}

// preallocate reserves space for the first n bytes of a file that has so many, without changing its size. A file system that
// is full has given what it had by then: what is behind the end of the file is given back.
func preallocate(fd int, have, n int64) error {
	for {
		err := unix.Fallocate(fd, unix.FALLOC_FL_KEEP_SIZE, 0, n)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, unix.EINTR):
			continue
		case n > have:
			_ = unix.Ftruncate(fd, have) // ext4 makes no hole behind the end
		}
		return scarce(fd, err)
	}
}

// scarce adds how much room there is to the error of a file system that is full.
func scarce(fd int, err error) error {
	var file unix.Stat_t
	var fs unix.Statfs_t
	if !errors.Is(err, unix.ENOSPC) || unix.Fstat(fd, &file) != nil || unix.Fstatfs(fd, &fs) != nil {
		return err
	}
	return fmt.Errorf("%w: the file has %d of them, and its file system has %d bytes free", err, file.Blocks*512, int64(fs.Bavail)*fs.Bsize)
}

// canPunch tries a hole beyond the end of the file, which changes nothing.
func canPunch(fd int, size int64) bool {
	return unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, (size+4095)&^4095, 4096) == nil
}

func canSeekHoles(fd int) bool {
	_, err := unix.Seek(fd, 0, unix.SEEK_DATA)
	return err == nil || errors.Is(err, unix.ENXIO)
}
