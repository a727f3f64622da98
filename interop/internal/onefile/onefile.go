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
	// From the beginning, offset 0, as much as there is: length 0.
	n := invalInode{Node: diskNode}
	n.Len, n.Error = uint32(binary.Size(n)), notifyInvalInode
	if _, err := unix.Write(f.fd, encode(n)); err != nil && !errors.Is(err, unix.ENOENT) { // it has nothing of it
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
		var h inHeader
		body, err := decode(buf[:n], &h)
		if err != nil {
			return
		}
		if h.Op == opForget || h.Op == opBatchForget || h.Op == opInterrupt {
			continue // these are not answered
		}
		answer, errno := f.handle(&h, body)
		if errno != 0 {
			answer = nil
		}
		out := outHeader{Error: -int32(errno), Unique: h.Unique}
		out.Len = uint32(binary.Size(out) + len(answer))
		if _, err := unix.Write(f.fd, append(encode(out), answer...)); err != nil && !errors.Is(err, unix.ENOENT) {
			return
		}
		if h.Op == opDestroy {
			return
		}
	}
}

// handle answers one request, whose body follows its header.
func (f *File) handle(h *inHeader, body []byte) ([]byte, syscall.Errno) {
	switch h.Op {
	case opInit:
		return encode(initOut{
			Major: 7, Minor: 31, MaxReadahead: maxFuseData, Flags: flagBigWrites | flagMaxPages,
			MaxBackground: 16, CongestionThreshold: 12, MaxWrite: maxFuseData, TimeGran: 1, MaxPages: maxFuseData / 4096,
		}), 0
	case opLookup:
		if h.Node != rootNode || string(body) != "disk\x00" {
			return nil, unix.ENOENT
		}
		return encode(entryOut{Node: diskNode, EntryValid: attrValid, AttrValid: attrValid, Attr: f.attr(diskNode)}), 0
	case opGetattr:
		return encode(attrOut{Valid: attrValid, Attr: f.attr(h.Node)}), 0
	case opSetattr:
		var in setattrIn
		if _, err := decode(body, &in); err != nil {
			return nil, unix.EINVAL
		}
		if in.Valid&setSize != 0 && in.Size != f.size {
			return nil, unix.EPERM // the disk has its size
		}
		return encode(attrOut{Valid: attrValid, Attr: f.attr(h.Node)}), 0
	case opOpen, opOpendir:
		return encode(openOut{}), 0
	case opRead:
		return f.read(body)
	case opWrite:
		return f.write(body)
	case opFsync:
		if err := f.store.Flush(); err != nil {
			return nil, errnoOf(err)
		}
		return nil, 0
	case opStatfs:
		return encode(statfsOut{BlockSize: 4096, NameLen: 255, FragmentSize: 4096}), 0
	case opRelease, opReleasedir, opFlush, opAccess, opDestroy:
		return nil, 0
	}
	return nil, unix.ENOSYS
}

func (f *File) read(body []byte) ([]byte, syscall.Errno) {
	var in readIn
	if _, err := decode(body, &in); err != nil {
		return nil, unix.EINVAL
	}
	p := make([]byte, max(0, min(int64(in.Size), f.size-in.Offset)))
	if _, err := f.store.ReadAt(p, in.Offset); err != nil {
		return nil, errnoOf(err)
	}
	return p, 0
}

func (f *File) write(body []byte) ([]byte, syscall.Errno) {
	var in writeIn
	data, err := decode(body, &in)
	if err != nil || int64(len(data)) < int64(in.Size) {
		return nil, unix.EINVAL
	}
	if in.Offset < 0 || in.Offset+int64(in.Size) > f.size {
		return nil, unix.EFBIG
	}
	if _, err := f.store.WriteAt(data[:in.Size], in.Offset); err != nil {
		return nil, errnoOf(err)
	}
	return encode(writeOut{Size: in.Size}), 0
}

// attr is that of the file, or of the folder that it is in.
func (f *File) attr(node uint64) attr {
	a := attr{Inode: node, Mode: unix.S_IFDIR | 0o700, Links: 2, UID: uint32(os.Getuid()), GID: uint32(os.Getgid()), BlockSize: 4096}
	if node == diskNode {
		a.Mode, a.Links = unix.S_IFREG|0o600, 1
		a.Size, a.Blocks = uint64(f.size), uint64(f.size/512)
	}
	return a
}

// errnoOf is what the kernel is told of an error: its own, or EIO.
func errnoOf(err error) syscall.Errno {
	if e, ok := errors.AsType[syscall.Errno](err); ok {
		return e
	}
	return unix.EIO
}
