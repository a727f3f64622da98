package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"softiser/internal/terminal"
)

// input opens FILE or standard input and says how long it is, if it knows. A
// terminal is read only where it is asked for by name, "-".
func input(a []string) (r *os.File, length int64, err error) {
	if len(a) < 2 && terminal.Is(os.Stdin) {
		return nil, -1, usage("standard input is a terminal: name a FILE, send the data through a pipe, or type - to enter it by hand")
	}
	if len(a) < 2 || a[1] == "-" {
		return os.Stdin, -1, nil
	}
	f, err := os.Open(a[1])
	if errors.Is(err, fs.ErrNotExist) && strings.Contains(a[1], "://") {
		return nil, -1, usage("%s is no file; the volume's URL comes first, then FILE", a[1])
	}
	if err != nil {
		return nil, -1, err
	}
	st, err := f.Stat()
	switch {
	case err == nil && st.IsDir():
		f.Close()
		return nil, -1, fmt.Errorf("%s is a directory", a[1])
	case err == nil && st.Mode()&os.ModeCharDevice != 0: // /dev/zero can be sought in, and has no end
		return f, -1, nil
	}
	n, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return f, -1, nil // a pipe
	}
	_, err = f.Seek(0, io.SeekStart)
	return f, n, err
}

// interruptible reads from f and gives up when ctx ends, also while nothing
// comes: a terminal, or a pipe whose writer is at rest, holds a Read for ever.
type interruptible struct {
	ctx    context.Context
	f      *os.File
	wake   int // eventfd that is readable once ctx has ended
	forget func() bool
	woken  chan struct{} // closed when wake has been written
}

func newInterruptible(ctx context.Context, f *os.File) (*interruptible, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("eventfd: %w", err)
	}
	r := &interruptible{ctx: ctx, f: f, wake: fd, woken: make(chan struct{})}
	r.forget = context.AfterFunc(ctx, func() {
		defer close(r.woken)
		_, _ = unix.Write(fd, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	})
	return r, nil
}

func (r *interruptible) Read(p []byte) (int, error) {
	for {
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
}

// Close lets the waiting go; the file stays open.
func (r *interruptible) Close() {
	if !r.forget() {
		<-r.woken
	}
	unix.Close(r.wake)
}
