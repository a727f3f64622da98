package uring

import (
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Reader reads files by a ring of its own, for any number of goroutines.
type Reader struct {
	file *os.File // the ring's descriptor, known to Go's poller
	raw  syscall.RawConn

	mu    sync.Mutex // guards what follows
	ring  *Ring
	reads []read
	free  []uint32
	ended chan struct{}
}

type read struct {
	res  int32
	done chan struct{}
}

func NewReader(n int) (*Reader, error) {
	ring, err := New(n)
	if err != nil {
		return nil, err
	}
	unix.SetNonblock(ring.fd, true)
	r := &Reader{ring: ring, reads: make([]read, n), ended: make(chan struct{})}
	for i := range r.reads {
		r.reads[i].done = make(chan struct{}, 1)
		r.free = append(r.free, uint32(i))
	}
	fd, err := unix.Dup(ring.fd)
	if err != nil {
		return nil, err
	}
	r.file = os.NewFile(uintptr(fd), "io_uring")
	if r.raw, err = r.file.SyscallConn(); err != nil {
		return nil, err
	}
	go r.reap()
	return r, nil
}

func (r *Reader) reap() {
	defer close(r.ended)
	r.raw.Read(func(uintptr) bool {
		r.mu.Lock()
		r.take()
		r.mu.Unlock()
		return false
	})
}

var Takes, Taken atomic.Int64

func (r *Reader) take() {
	var c [64]Completion
	n := r.ring.Take(c[:])
	Takes.Add(1)
	Taken.Add(int64(n))
	for _, c := range c[:n] {
		d := &r.reads[c.UserData]
		d.res = c.Res
		d.done <- struct{}{}
	}
}

// Pread is pread.
func (r *Reader) Pread(fd int, p []byte, off int64) (int, error) {
	r.mu.Lock()
	if len(r.free) == 0 {
		r.mu.Unlock()
		return unix.Pread(fd, p, off)
	}
	i := r.free[len(r.free)-1]
	r.free = r.free[:len(r.free)-1]
	e := r.ring.Next()
	e.Op, e.FD, e.CmdOp, e.Addr, e.Len, e.UserData = OpRead, int32(fd), uint64(off), uint64(uintptr(unsafe.Pointer(&p[0]))), uint32(len(p)), uint64(i)
	atomic.StoreUint32(r.ring.sqTail, r.ring.tail)
	n, _, _ := unix.RawSyscall6(unix.SYS_IO_URING_ENTER, uintptr(r.ring.fd), uintptr(r.ring.tail-r.ring.submitted), 0, 0, 0, 0)
	r.ring.submitted += uint32(n)
	r.take()
	r.mu.Unlock()
	d := &r.reads[i]
	<-d.done
	runtime.KeepAlive(p)
	res := d.res
	r.mu.Lock()
	r.free = append(r.free, i)
	r.mu.Unlock()
	if res < 0 {
		return 0, unix.Errno(-res)
	}
	return int(res), nil
}

func (r *Reader) Close() error {
	r.file.Close()
	<-r.ended
	return r.ring.Close()
}
