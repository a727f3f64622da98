// Package onefile is a file system of one file, which serves the kernel by the FUSE protocol
// (version 7.31, linux/fuse.h): what a program does to a disk goes through the kernel, its
// page cache included, and arrives at a store of ours.
package onefile

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// ErrNoMeans says that this machine has no FUSE, or that we may not mount.
var ErrNoMeans = errors.New("no FUSE file system on this machine")

// Store is the content of the file. It is called by one goroutine.
type Store interface {
	ReadAt(p []byte, off int64) (int, error)
	WriteAt(p []byte, off int64) (int, error)
	Flush() error
}

// File is the mounted file system. Who uses its file must be another process: one that waits
// for itself cannot even be killed.
type File struct {
	dir   string
	fd    int
	size  int64
	store Store
	done  chan struct{}
}

const (
	maxFuseData = 128 << 10

	rootNode, diskNode = 1, 2
	attrValid          = 1 << 30 // seconds for which the kernel need not ask again
)

// FUSE opcodes.
const (
	fuseLookup      = 1
	fuseForget      = 2
	fuseGetattr     = 3
	fuseSetattr     = 4
	fuseOpen        = 14
	fuseRead        = 15
	fuseWrite       = 16
	fuseStatfs      = 17
	fuseRelease     = 18
	fuseFsync       = 20
	fuseFlush       = 25
	fuseInit        = 26
	fuseOpendir     = 27
	fuseReleasedir  = 29
	fuseAccess      = 34
	fuseInterrupt   = 36
	fuseDestroy     = 38
	fuseBatchForget = 42
)

// Mount makes dir the file system, with a file of size bytes.
func Mount(dir string, size int64, store Store) (*File, error) {
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("%w: /dev/fuse: %v", ErrNoMeans, err)
	}
	if err := unix.Mount("onefile", dir, "fuse", unix.MS_NOSUID|unix.MS_NODEV, fmt.Sprintf("fd=%d,rootmode=40000,user_id=%d,group_id=%d", fd, os.Getuid(), os.Getgid())); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("%w: mounting one: %v", ErrNoMeans, err)
	}
	f := &File{dir: dir, fd: fd, size: size, store: store, done: make(chan struct{})}
	go f.serve()
	return f, nil
}

// Path is that of the file.
func (f *File) Path() string { return filepath.Join(f.dir, "disk") }

// Close takes the file system away. Who still uses it gets errors.
func (f *File) Close() {
	_ = unix.Unmount(f.dir, unix.MNT_DETACH|unix.MNT_FORCE)
	<-f.done
	unix.Close(f.fd)
}

// Forget has the kernel forget what it has cached of the file, so that what is read next is
// the store's.
func (f *File) Forget() error {
	const invalidateInode = 2 // enum fuse_notify_code
	le := binary.LittleEndian
	out := make([]byte, 40)
	le.PutUint32(out, uint32(len(out)))
	le.PutUint32(out[4:], invalidateInode)
	le.PutUint64(out[16:], diskNode)
	// From the beginning, offset 0, as much as there is: length 0.
	if _, err := unix.Write(f.fd, out); err != nil && !errors.Is(err, unix.ENOENT) { // it has nothing of it
		return fmt.Errorf("onefile: %w", err)
	}
	return nil
}

// serve answers one request of the kernel after the other.
func (f *File) serve() {
	defer close(f.done)
	runtime.LockOSThread() // reads of /dev/fuse block
	defer runtime.UnlockOSThread()
	buf := make([]byte, maxFuseData+(64<<10))
	for {
		n, err := unix.Read(f.fd, buf)
		switch {
		case err == unix.EINTR || err == unix.EAGAIN || err == unix.ENOENT: // ENOENT: the request was interrupted
			continue
		case err != nil:
			return // ENODEV: it is no longer mounted
		}
		const header = 40
		if n < header {
			return
		}
		le := binary.LittleEndian
		op, unique, node := le.Uint32(buf[4:]), le.Uint64(buf[8:]), le.Uint64(buf[16:])
		if op == fuseForget || op == fuseBatchForget || op == fuseInterrupt {
			continue // these are not answered
		}
		body, e := f.handle(op, node, buf[header:n])
		out := make([]byte, 16, 16+len(body))
		if e != 0 {
			body = nil
		}
		out = append(out, body...)
		le.PutUint32(out, uint32(len(out)))
		le.PutUint32(out[4:], uint32(-int32(e)))
		le.PutUint64(out[8:], unique)
		if _, err := unix.Write(f.fd, out); err != nil && !errors.Is(err, unix.ENOENT) {
			return
		}
		if op == fuseDestroy {
			return
		}
	}
}

// handle answers one FUSE request for the one file.
func (f *File) handle(op uint32, node uint64, in []byte) ([]byte, syscall.Errno) {
	le := binary.LittleEndian
	switch op {
	case fuseInit:
		out := make([]byte, 64)
		le.PutUint32(out, 7)
		le.PutUint32(out[4:], 31)
		le.PutUint32(out[8:], maxFuseData) // read-ahead
		const bigWrites, maxPages = 1 << 5, 1 << 22
		le.PutUint32(out[12:], bigWrites|maxPages)
		le.PutUint16(out[16:], 16) // requests in the background
		le.PutUint16(out[18:], 12)
		le.PutUint32(out[20:], maxFuseData)
		le.PutUint32(out[24:], 1)
		le.PutUint16(out[28:], maxFuseData/4096)
		return out, 0
	case fuseLookup:
		if node != rootNode || string(in) != "disk\x00" {
			return nil, unix.ENOENT
		}
		out := make([]byte, 40, 128)
		le.PutUint64(out, diskNode)
		le.PutUint64(out[16:], attrValid)
		le.PutUint64(out[24:], attrValid)
		return append(out, f.attr(diskNode)...), 0
	case fuseGetattr, fuseSetattr:
		const setSize = 1 << 3
		if op == fuseSetattr && le.Uint32(in)&setSize != 0 && int64(le.Uint64(in[16:])) != f.size {
			return nil, unix.EPERM // the disk has its size
		}
		out := make([]byte, 16, 104)
		le.PutUint64(out, attrValid)
		return append(out, f.attr(node)...), 0
	case fuseOpen, fuseOpendir:
		return make([]byte, 16), 0
	case fuseRead:
		off, n := int64(le.Uint64(in[8:])), int64(le.Uint32(in[16:]))
		n = max(0, min(n, f.size-off))
		p := make([]byte, n)
		if _, err := f.store.ReadAt(p, off); err != nil {
			return nil, errnoOf(err)
		}
		return p, 0
	case fuseWrite:
		off, n := int64(le.Uint64(in[8:])), int(le.Uint32(in[16:]))
		out := make([]byte, 8)
		le.PutUint32(out, uint32(n))
		if off < 0 || off+int64(n) > f.size {
			return nil, unix.EFBIG
		}
		if _, err := f.store.WriteAt(in[40:40+n], off); err != nil {
			return nil, errnoOf(err)
		}
		return out, 0
	case fuseFsync:
		if err := f.store.Flush(); err != nil {
			return nil, errnoOf(err)
		}
		return nil, 0
	case fuseStatfs:
		out := make([]byte, 80)
		le.PutUint32(out[40:], 4096)
		le.PutUint32(out[44:], 255)
		le.PutUint32(out[48:], 4096)
		return out, 0
	case fuseRelease, fuseReleasedir, fuseFlush, fuseAccess, fuseDestroy:
		return nil, 0
	}
	return nil, unix.ENOSYS
}

// attr is a struct fuse_attr.
func (f *File) attr(node uint64) []byte {
	out := make([]byte, 88)
	le := binary.LittleEndian
	le.PutUint64(out, node)
	mode, links := uint32(unix.S_IFDIR|0o700), uint32(2)
	if node == diskNode {
		mode, links = unix.S_IFREG|0o600, 1
		le.PutUint64(out[8:], uint64(f.size))
		le.PutUint64(out[16:], uint64(f.size/512))
	}
	le.PutUint32(out[60:], mode)
	le.PutUint32(out[64:], links)
	le.PutUint32(out[68:], uint32(os.Getuid()))
	le.PutUint32(out[72:], uint32(os.Getgid()))
	le.PutUint32(out[80:], 4096)
	return out
}

// errnoOf is what the kernel is told of an error: its own, or EIO.
func errnoOf(err error) syscall.Errno {
	if e, ok := errors.AsType[syscall.Errno](err); ok {
		return e
	}
	return unix.EIO
}
