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

// input is FILE, or standard input. Its Read gives up when ctx ends, also while nothing
// comes: a terminal, or a pipe whose writer is at rest, holds a Read for ever.
type input struct {
	ctx    context.Context
	f      *os.File
	length int64 // -1: it has no end, or nobody knows
	wake   int   // eventfd that is readable once ctx has ended
	forget func() bool
	woken  chan struct{} // closed when wake has been written
}

// openInput opens what a, the arguments of write and verify, name behind the URL.
func openInput(ctx context.Context, a []string) (*input, error) {
	f, length, err := openFile(a)
	if err != nil {
		return nil, err
	}
	in, err := newInput(ctx, f, length)
	if err != nil {
		f.Close()
	}
	return in, err
}

// newInput takes f over, unless there is an error.
func newInput(ctx context.Context, f *os.File, length int64) (*input, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("eventfd: %w", err)
	}
	in := &input{ctx: ctx, f: f, length: length, wake: fd, woken: make(chan struct{})}
	in.forget = context.AfterFunc(ctx, func() {
		defer close(in.woken)
		_, _ = unix.Write(fd, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	})
	return in, nil
}

// openFile opens FILE or standard input and says how long it is; -1: it has no end, or nobody
// knows. A terminal is read only where it is asked for by name, "-".
func openFile(a []string) (f *os.File, length int64, err error) {
	if len(a) < 2 && terminal.Is(os.Stdin) {
		return nil, -1, usage("standard input is a terminal: name a FILE, send the data through a pipe, or type - to enter it by hand")
	}
	if len(a) < 2 || a[1] == "-" {
		return os.Stdin, -1, nil
	}
	f, err = os.Open(a[1])
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

func (in *input) Read(p []byte) (int, error) {
	for {
		fds := []unix.PollFd{{Fd: int32(in.f.Fd()), Events: unix.POLLIN}, {Fd: int32(in.wake), Events: unix.POLLIN}}
		if _, err := unix.Poll(fds, -1); err != nil && !errors.Is(err, unix.EINTR) {
			return 0, fmt.Errorf("poll: %w", err)
		}
		if err := in.ctx.Err(); err != nil {
			return 0, err
		}
		if fds[0].Revents != 0 {
			return in.f.Read(p)
		}
	}
}

// Close ends the waiting, and closes the file.
func (in *input) Close() {
	if !in.forget() {
		<-in.woken
	}
	unix.Close(in.wake)
	in.f.Close()
}
