package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"softiser/blockdev/crashlog"
)

// recorder is a file system of one file, "disk", that serves the kernel by the FUSE
// protocol (version 7.31, linux/fuse.h). Its disk remembers every write and every fsync
// that the kernel has sent, and so knows what a power cut may leave: the page cache in
// between is the real one.
type recorder struct {
	dir  string
	fd   int
	size int64
	disk *crashlog.Device
	drop bool // forget flushes
	done chan struct{}
}

const (
	sectorSize  = 512
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

func newRecorder(under string, size int64, drop bool) (*recorder, error) {
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("%w: /dev/fuse: %v", errNoMeans, err)
	}
	dir, err := os.MkdirTemp(under, "power-")
	if err == nil {
		if err = unix.Mount("soak", dir, "fuse", unix.MS_NOSUID|unix.MS_NODEV, fmt.Sprintf("fd=%d,rootmode=40000,user_id=%d,group_id=%d", fd, os.Getuid(), os.Getgid())); err != nil {
			err = fmt.Errorf("%w: mounting a FUSE file system: %v", errNoMeans, err)
		}
	}
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	disk, err := crashlog.New(size, sectorSize)
	if err != nil {
		return nil, err
	}
	r := &recorder{dir: dir, fd: fd, size: size, disk: disk, drop: drop, done: make(chan struct{})}
	go r.serve()
	return r, nil
}

func (r *recorder) path() string { return filepath.Join(r.dir, "disk") }

// close takes the file system away. Who still uses it gets errors.
func (r *recorder) close() {
	_ = unix.Unmount(r.dir, unix.MNT_DETACH|unix.MNT_FORCE)
	<-r.done
	unix.Close(r.fd)
	os.Remove(r.dir)
}

// serve answers one request of the kernel after the other.
func (r *recorder) serve() {
	defer close(r.done)
	runtime.LockOSThread() // reads of /dev/fuse block
	defer runtime.UnlockOSThread()
	buf := make([]byte, maxFuseData+(64<<10))
	for {
		n, err := unix.Read(r.fd, buf)
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
		body, e := r.handle(op, node, buf[header:n])
		out := make([]byte, 16, 16+len(body))
		if e != 0 {
			body = nil
		}
		out = append(out, body...)
		le.PutUint32(out, uint32(len(out)))
		le.PutUint32(out[4:], uint32(-int32(e)))
		le.PutUint64(out[8:], unique)
		if _, err := unix.Write(r.fd, out); err != nil && !errors.Is(err, unix.ENOENT) {
			return
		}
		if op == fuseDestroy {
			return
		}
	}
}

// handle answers one FUSE request for the recorder's one file.
func (r *recorder) handle(op uint32, node uint64, in []byte) ([]byte, syscall.Errno) {
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
		return append(out, r.attr(diskNode)...), 0
	case fuseGetattr, fuseSetattr:
		const setSize = 1 << 3
		if op == fuseSetattr && le.Uint32(in)&setSize != 0 && int64(le.Uint64(in[16:])) != r.size {
			return nil, unix.EPERM // the disk has its size
		}
		out := make([]byte, 16, 104)
		le.PutUint64(out, attrValid)
		return append(out, r.attr(node)...), 0
	case fuseOpen, fuseOpendir:
		return make([]byte, 16), 0
	case fuseRead:
		off, n := int64(le.Uint64(in[8:])), int64(le.Uint32(in[16:]))
		n = max(0, min(n, r.size-off))
		p := make([]byte, n)
		return p, r.copyOut(p, off)
	case fuseWrite:
		off, n := int64(le.Uint64(in[8:])), int(le.Uint32(in[16:]))
		out := make([]byte, 8)
		le.PutUint32(out, uint32(n))
		return out, r.copyIn(in[40:40+n], off)
	case fuseFsync:
		if r.drop {
			return nil, 0
		}
		if err := r.disk.Flush(); err != nil {
			return nil, unix.EIO
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
func (r *recorder) attr(node uint64) []byte {
	out := make([]byte, 88)
	le := binary.LittleEndian
	le.PutUint64(out, node)
	mode, links := uint32(unix.S_IFDIR|0o700), uint32(2)
	if node == diskNode {
		mode, links = unix.S_IFREG|0o600, 1
		le.PutUint64(out[8:], uint64(r.size))
		le.PutUint64(out[16:], uint64(r.size/sectorSize))
	}
	le.PutUint32(out[60:], mode)
	le.PutUint32(out[64:], links)
	le.PutUint32(out[68:], uint32(os.Getuid()))
	le.PutUint32(out[72:], uint32(os.Getgid()))
	le.PutUint32(out[80:], 4096)
	return out
}

// sectors returns the whole sectors around a range.
func sectors(off int64, n int) (from, to int64) {
	return off &^ (sectorSize - 1), (off + int64(n) + sectorSize - 1) &^ (sectorSize - 1)
}

func (r *recorder) copyOut(p []byte, off int64) syscall.Errno {
	from, to := sectors(off, len(p))
	whole := make([]byte, to-from)
	if _, err := r.disk.ReadAt(whole, from); err != nil {
		return unix.EIO
	}
	copy(p, whole[off-from:])
	return 0
}

func (r *recorder) copyIn(p []byte, off int64) syscall.Errno {
	if off < 0 || off+int64(len(p)) > r.size {
		return unix.EFBIG
	}
	from, to := sectors(off, len(p))
	whole := make([]byte, to-from)
	if _, err := r.disk.ReadAt(whole, from); err != nil {
		return unix.EIO
	}
	copy(whole[off-from:], p)
	if _, err := r.disk.WriteAt(whole, from); err != nil {
		return unix.EIO
	}
	return 0
}
