package sock

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// MaxVec is the largest number of pieces in one call (the kernel's UIO_MAXIOV).
const MaxVec = 1024

// Vec is one piece of memory in a vectored call. The zero Vec is empty.
type Vec = unix.Iovec

// Set makes v name p, which must not be empty.
func Set(v *Vec, p []byte) {
	v.Base = unsafe.SliceData(p)
	v.Len = uint64(len(p))
}

// Skip drops the first n bytes of what v names and returns the rest of v. It
// changes the first piece that remains.
func Skip(v []Vec, n int) []Vec {
	for len(v) > 0 && uint64(n) >= v[0].Len {
		n -= int(v[0].Len)
		v[0].Base = nil
		v = v[1:]
	}
	if n > 0 {
		v[0].Base = (*byte)(unsafe.Add(unsafe.Pointer(v[0].Base), n))
		v[0].Len -= uint64(n)
	}
	return v
}

// Writev sends v in one non-blocking call. more tells TCP that further bytes
// follow at once, so that a short last segment waits for them.
func (c *Conn) Writev(v []Vec, more bool) (int, error) {
	flags := unix.MSG_DONTWAIT | unix.MSG_NOSIGNAL
	if more {
		flags |= unix.MSG_MORE
	}
	return c.send(v, flags)
}

func (c *Conn) send(v []Vec, flags int) (int, error) {
	ioRelease()
	c.tx.Iov = unsafe.SliceData(v)
	c.tx.Iovlen = uint64(len(v))
	for {
		n, _, e := unix.Syscall(unix.SYS_SENDMSG, uintptr(c.fd), uintptr(unsafe.Pointer(&c.tx)), uintptr(flags))
		if e == unix.EINTR {
			continue
		}
		c.tx.Iov = nil
		if e != 0 {
			return 0, e
		}
		return int(n), nil
	}
}

// Readv receives into v in one non-blocking call. 0 bytes without an error is the
// end of the stream.
func (c *Conn) Readv(v []Vec) (int, error) {
	if c.ask {
		return c.readAsk(v, nil)
	}
	c.drained = false
	c.rx.Iov = unsafe.SliceData(v)
	c.rx.Iovlen = uint64(len(v))
	for {
		n, _, e := unix.Syscall(unix.SYS_RECVMSG, uintptr(c.fd), uintptr(unsafe.Pointer(&c.rx)), unix.MSG_DONTWAIT)
		if e == unix.EINTR {
			continue
		}
		c.rx.Iov = nil
		if e != 0 {
			return 0, e
		}
		ioAcquire()
		return int(n), nil
	}
}

// Read is Readv with one piece; p must not be empty.
func (c *Conn) Read(p []byte) (int, error) {
	if c.ask {
		return c.readAsk(nil, p)
	}
	c.drained = false
	return c.recv(p, 0)
}

// readAsk is Readv into v, or Read into p, with the question what is left.
func (c *Conn) readAsk(v []Vec, p []byte) (n int, err error) {
	for {
		var e syscall.Errno
		if p != nil {
			n, c.drained, e = c.inq.Recv1(c.fd, &c.rx, p)
		} else {
			n, c.drained, e = c.inq.Recv(c.fd, &c.rx, v)
		}
		switch e {
		case 0:
			ioAcquire()
			return n, nil
		case unix.EINTR:
		default:
			return 0, e
		}
	}
}

func (c *Conn) recv(p []byte, flags uintptr) (int, error) {
	for {
		n, _, e := unix.Syscall6(unix.SYS_RECVFROM, uintptr(c.fd), uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)), unix.MSG_DONTWAIT|flags, 0, 0)
		if e == unix.EINTR {
			continue
		}
		if e != 0 {
			return 0, e
		}
		ioAcquire()
		return int(n), nil
	}
}

// Peek is Read that leaves what it has read in the socket.
func (c *Conn) Peek(p []byte) (int, error) { return c.recv(p, unix.MSG_PEEK) }
