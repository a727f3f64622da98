package uring

import (
	"errors"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Files has a ring read and sync files for goroutines. Who waits for a disk there is parked by Go,
// and holds neither a thread nor a processor of its scheduler, as one in pread would until the
// runtime's monitor notices: there may be as many under way as the disk can take.
//
//	Read, SyncData ──entry──► kernel ──completion──► who enters next, or reap ──► the caller
//
// It is safe for concurrent use.
type Files struct {
	poll  *os.File        // a descriptor of the ring that Go's poller has
	ready syscall.RawConn // of poll
	ended chan struct{}   // closed by reap

	mu    sync.Mutex // guards what follows; a leaf
	ring  *Ring
	calls []call
	free  []uint32 // of calls
}

// call is one that is under way, its index is the user data of its entry.
type call struct {
	memory []byte     // what the kernel reads into: on the heap, and kept alive
	result chan int32 // of one element
}

// ErrBusy says that the kernel has not made a call, which the caller may make by itself: as many as
// there is room for are under way, or the thread that had submitted it has ended meanwhile.
var ErrBusy = errors.New("io_uring: the call was not made")

// NewFiles makes a ring for at most n calls at once. Close gives it back.
func NewFiles(n int) (_ *Files, err error) {
	ring, err := New(n)
	if err != nil {
		return nil, err
	}
	f := &Files{ring: ring, calls: make([]call, n), free: make([]uint32, n), ended: make(chan struct{})}
	for i := range f.calls {
		f.calls[i].result = make(chan int32, 1)
		f.free[i] = uint32(i)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, ring.Close())
		}
	}()
	// Calls that have to wait are made by threads of the kernel, of which it would have four for each processor.
	if err := ring.workers(n); err != nil {
		return nil, err
	}
	fd, err := unix.FcntlInt(uintptr(ring.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("fcntl", err)
	}
	f.poll = os.NewFile(uintptr(fd), "io_uring") // enters it into the poller
	if f.ready, err = f.poll.SyscallConn(); err != nil {
		f.poll.Close()
		return nil, err
	}
	go f.reap()
	return f, nil
}

// Close gives the ring back. Preconditions: no call is under way.
func (f *Files) Close() error {
	err := f.poll.Close()
	<-f.ended
	return errors.Join(err, f.ring.Close())
}

// Read is pread. p is not on a stack.
func (f *Files) Read(fd int, p []byte, off int64) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	return f.do(Entry{Op: OpRead, FD: int32(fd), CmdOp: uint64(off), Len: uint32(len(p))}, p)
}

// SyncMost is the longest range that SyncData takes, bytes.
const SyncMost = 1 << 32

// SyncData is fdatasync for n bytes from off, at most SyncMost; all of the file when both are 0.
func (f *Files) SyncData(fd int, off, n int64) error {
	// To the kernel, the byte at off + Len is the last one.
	_, err := f.do(Entry{Op: opFsync, FD: int32(fd), CmdOp: uint64(off), Len: uint32(max(n-1, 0)), OpFlags: fsyncDataSync}, nil)
	return err
}

// do has the kernel make a call, and waits for its result.
func (f *Files) do(e Entry, memory []byte) (int, error) {
	f.mu.Lock()
	if len(f.free) == 0 {
		f.mu.Unlock()
		return 0, ErrBusy
	}
	i := f.free[len(f.free)-1]
	f.free = f.free[:len(f.free)-1]
	c := &f.calls[i]
	c.memory = memory
	e.Addr, e.UserData = addressOf(memory), uint64(i)
	if !f.ring.push(e) {
		f.giveBack(i)
		f.mu.Unlock()
		return 0, ErrBusy
	}
	f.take()
	f.mu.Unlock()

	res := <-c.result

	f.mu.Lock()
	f.giveBack(i)
	f.mu.Unlock()
	switch e := unix.Errno(-res); {
	case res >= 0:
		return int(res), nil
	case e == unix.ECANCELED: // no disk says that
		return 0, ErrBusy
	default:
		return 0, e
	}
}

// giveBack makes a call free for others. Preconditions: f.mu is held.
func (f *Files) giveBack(i uint32) {
	f.calls[i].memory = nil
	f.free = append(f.free, i)
}

// take hands the completions that are there to those who wait for them. Preconditions: f.mu is held.
func (f *Files) take() {
	var done [32]Completion
	for {
		n := f.ring.Take(done[:])
		for _, d := range done[:n] {
			f.calls[d.UserData].result <- d.Res
		}
		if n < len(done) {
			return
		}
	}
}

// reap takes completions whenever the poller says that there are some.
func (f *Files) reap() {
	defer close(f.ended)
	f.ready.Read(func(uintptr) bool {
		f.mu.Lock()
		f.take()
		f.mu.Unlock()
		return false // until poll is closed
	})
}
