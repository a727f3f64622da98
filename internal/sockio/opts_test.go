package sockio

import (
	"testing"

	"golang.org/x/sys/unix"
)

// buffer returns the receive buffer of a socket, and whether its size has been fixed.
func buffer(t *testing.T, fd int) (n int, fixed bool) {
	t.Helper()
	lock, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BUF_LOCK)
	if err != nil {
		t.Skip("a kernel before 5.15:", err)
	}
	if n, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF); err != nil {
		t.Fatal(err)
	}
	return n, lock&unix.SOCK_RCVBUF_LOCK != 0
}

// Within one host the receive buffer is bounded, where the kernel grants it.
func TestHostBuffer(t *testing.T) {
	_, nc, fd := pairOverLoopback(t)
	if err := Apply(nc, Options{}); err != nil {
		t.Fatal(err)
	}
	n, fixed := buffer(t, fd)
	if granted := grants(t, HostBuffer); fixed != granted || fixed && n != 2*HostBuffer {
		t.Errorf("%d bytes, fixed %v, the kernel grants it: %v", n, fixed, granted)
	}
}

// grants reports whether this process may have a receive buffer of n bytes.
func grants(t *testing.T, n int) bool {
	t.Helper()
	_, _, fd := pairOverLoopback(t)
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, n) == nil {
		return true
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, n); err != nil {
		t.Fatal(err)
	}
	got, _ := buffer(t, fd)
	return got >= 2*n
}

// What somebody has fixed stays as it is, also by a second call that names no size.
func TestFixedBufferStays(t *testing.T) {
	_, nc, fd := pairOverLoopback(t)
	for _, o := range []Options{{RecvBuffer: 1 << 15}, {}} {
		if err := Apply(nc, o); err != nil {
			t.Fatal(err)
		}
		if n, fixed := buffer(t, fd); n != 1<<16 || !fixed {
			t.Errorf("%+v: %d bytes, fixed %v", o, n, fixed)
		}
	}
}

// A size that the kernel does not grant, whoever asks, leaves its tuning on.
func TestBufferNotGranted(t *testing.T) {
	_, _, fd := pairOverLoopback(t)
	buffer(t, fd)
	bound(fd, 1<<31-1) // SO_RCVBUFFORCE stops at half of it
	if n, fixed := buffer(t, fd); fixed {
		t.Errorf("%d bytes, fixed", n)
	}
}
