package terminal

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Reader reads from a file and gives up when its context ends or it is closed, also while nothing comes: a terminal, or a
// pipe whose writer is at rest, holds a Read for ever.
type Reader struct {
	ctx    context.Context //nolint:containedctx // of the command that reads
	f      *os.File
	mu     sync.Mutex // held by a Read
	wake   int        // eventfd that is readable once ctx has ended, or closed is true; guarded by mu
	closed atomic.Bool
	forget func() bool
	woken  chan struct{} // closed when wake has been written for ctx
}

// NewReader makes a Reader of f, which stays open when the Reader is closed.
func NewReader(ctx context.Context, f *os.File) (*Reader, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("eventfd: %w", err)
	}
	r := &Reader{ctx: ctx, f: f, wake: fd, woken: make(chan struct{})}
	r.forget = context.AfterFunc(ctx, func() {
		defer close(r.woken)
		wakeUp(fd)
	})
	return r, nil
}

func wakeUp(fd int) { _, _ = unix.Write(fd, []byte{1, 0, 0, 0, 0, 0, 0, 0}) }

// Read implements io.Reader.
func (r *Reader) Read(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for !r.closed.Load() {
		fds := []unix.PollFd{{Fd: int32(r.f.Fd()), Events: unix.POLLIN}, {Fd: int32(r.wake), Events: unix.POLLIN}}
		if _, err := unix.Poll(fds, -1); err != nil && !errors.Is(err, unix.EINTR) {
			return 0, fmt.Errorf("poll: %w", err)
		}
		if err := r.ctx.Err(); err != nil {
			return 0, err
		}
		if fds[0].Revents != 0 {
			return r.f.Read(p)
		}
	}
	return 0, os.ErrClosed
}

// Close ends a Read that waits: net/http may be reading still when it has its answer.
func (r *Reader) Close() error {
	r.closed.Store(true)
	wakeUp(r.wake)
	if !r.forget() {
		<-r.woken
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return unix.Close(r.wake)
}
