package ublk

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// counter is an event counter with the memory into which a ring reads it.
type counter struct {
	fd    int32
	value []byte // 8 bytes
}

// one is what a signal adds.
var one = func() []byte { b := make([]byte, 8); host.PutUint64(b, 1); return b }()

func newCounter(value []byte) (counter, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return counter{}, os.NewSyscallError("eventfd", err)
	}
	return counter{int32(fd), value}, nil
}

// signal ends the read that waits, or the next one.
func (c *counter) signal() {
	for {
		if _, err := unix.Write(int(c.fd), one); !errors.Is(err, unix.EINTR) {
			return // it takes 2^64-2 signals before one fails
		}
	}
}

func (c *counter) close() error { return unix.Close(int(c.fd)) }

// allocate maps n bytes, which the system provides when they are first used.
func allocate(n int) ([]byte, error) {
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("ublk: buffers of %d bytes: %w", n, err)
	}
	return b, nil
}
