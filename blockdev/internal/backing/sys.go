package backing

import (
	"errors"
	"unsafe"

	"golang.org/x/sys/unix"
)

// kernel is the system calls that a volume makes on its backing store. Tests
// replace single ones to make a disk fail or fill up.
type kernel struct {
	pread       func(fd int, p []byte, off int64) (int, error)
	preadCached func(fd int, bufs [][]byte, off int64) (int, error)
	pwritev     func(fd int, bufs [][]byte, off int64) (int, error)
	madvise     func(p []byte, advice int) error
	mincore     func(p []byte, vec []byte) error
	msync       func(p []byte, flags int) error
	fdatasync   func(fd int) error
	fadvise     func(fd int, off, n int64, advice int) error
	fallocate   func(fd int, mode uint32, off, n int64) error
	ftruncate   func(fd int, n int64) error
	seek        func(fd int, off int64, whence int) (int64, error)
	mlock       func(p []byte) error
	mmap        func(fd int, off int64, n, prot, flags int) ([]byte, error)
	reopen      func(fd int) (int, error)
	allocated   func(fd int, off, n int64) (at, length int64, err error)
}

var linux = kernel{
	pread:       unix.Pread,
	preadCached: preadCached,
	pwritev:     pwritev,
	madvise:     unix.Madvise,
	mincore:     mincore,
	msync:       unix.Msync,
	fdatasync:   unix.Fdatasync,
	fadvise:     unix.Fadvise,
	fallocate:   unix.Fallocate,
	ftruncate:   unix.Ftruncate,
	seek:        unix.Seek,
	mlock:       mlockOnFault,
	mmap:        unix.Mmap,
	reopen:      reopen,
	allocated:   allocated,
}

// retry repeats a call that a signal interrupted; Go's own preemption signals
// do that to calls that wait for a network file system.
func retry(f func() error) error {
	for {
		err := f()
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// pwritev is the call of that name. One piece needs no list of pieces, which the kernel would have to
// fetch and check.
func pwritev(fd int, bufs [][]byte, off int64) (int, error) {
	if len(bufs) == 1 {
		return unix.Pwrite(fd, bufs[0], off)
	}
	return unix.Pwritev(fd, bufs, off)
}

// preadCached is preadv of what is in memory: else it ends early, or with EAGAIN.
func preadCached(fd int, bufs [][]byte, off int64) (int, error) {
	return unix.Preadv2(fd, bufs, off, unix.RWF_NOWAIT)
}

func mincore(p []byte, vec []byte) error {
	_, _, e := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)), uintptr(unsafe.Pointer(unsafe.SliceData(vec))))
	if e != 0 {
		return e
	}
	return nil
}

// mlockOnFault is mlock2 with MLOCK_ONFAULT (Linux 4.4).
func mlockOnFault(p []byte) error {
	_, _, e := unix.Syscall(unix.SYS_MLOCK2, uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)), unix.MLOCK_ONFAULT)
	if e != 0 {
		return e
	}
	return nil
}

// ioctlUint64 is an ioctl that returns one number.
func ioctlUint64(fd int, request uint) (n uint64, err error) {
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(request), uintptr(unsafe.Pointer(&n))); e != 0 {
		return 0, e
	}
	return n, nil
}

// fsIocFiemap is FS_IOC_FIEMAP.
const fsIocFiemap = 0xc020660b

// fiemap is struct fiemap with room for one struct fiemap_extent.
type fiemap struct {
	start, length         uint64
	flags, mapped         uint32
	count, _              uint32
	logical, physical, of uint64 // of: bytes of the extent
	_                     [2]uint64
	extentFlags           uint32
	_                     [3]uint32
}

// allocated returns the first run of [off, off+n) that has blocks in the file system, those
// included that SEEK_DATA passes over because they read as zeroes; length 0: there is none.
func allocated(fd int, off, n int64) (at, length int64, err error) {
	m := fiemap{start: uint64(off), length: uint64(n), count: 1}
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), fsIocFiemap, uintptr(unsafe.Pointer(&m))); e != 0 {
		return 0, 0, e
	}
	if m.mapped == 0 {
		return 0, 0, nil
	}
	at = max(int64(m.logical), off)
	return at, max(min(int64(m.logical+m.of), off+n)-at, 0), nil
}
