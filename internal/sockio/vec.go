package sockio

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

// Append appends p, unless it is empty.
func Append(v []Vec, p []byte) []Vec {
	if len(p) == 0 {
		return v
	}
	return append(v, Vec{Base: unsafe.SliceData(p), Len: uint64(len(p))})
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

// msgCall is sendmsg or recvmsg, which waits for the socket only if flags let it (InCall.Flags).
// soon says that it cannot wait for memory, because all that it names is resident: the Go scheduler is not told
// of such a call. It would watch it and, where a process has one processor, take that
// away from a call of more than 20 µs.
func msgCall(call uintptr, fd int, h *unix.Msghdr, flags int, soon bool) (n uintptr, e syscall.Errno) {
	if soon {
		n, _, e = unix.RawSyscall(call, uintptr(fd), uintptr(unsafe.Pointer(h)), uintptr(flags))
	} else {
		n, _, e = unix.Syscall(call, uintptr(fd), uintptr(unsafe.Pointer(h)), uintptr(flags))
	}
	return n, e
}

// pieceCall is msgCall for one piece, by sendto or recvfrom, which have less to look at.
func pieceCall(call uintptr, fd int, p Vec, flags int, soon bool) (n uintptr, e syscall.Errno) {
	if soon {
		n, _, e = unix.RawSyscall6(call, uintptr(fd), uintptr(unsafe.Pointer(p.Base)), uintptr(p.Len), uintptr(flags), 0, 0)
	} else {
		n, _, e = unix.Syscall6(call, uintptr(fd), uintptr(unsafe.Pointer(p.Base)), uintptr(p.Len), uintptr(flags), 0, 0)
	}
	return n, e
}

const sendFlags = unix.MSG_DONTWAIT | unix.MSG_NOSIGNAL

// Writev sends v in one non-blocking call. For soon see msgCall.
func (c *Conn) Writev(v []Vec, soon bool) (int, error) {
	if t := tapping.Load(); t != nil {
		if i := t.of(c); i >= 0 {
			return t.send(c, i, v, (*Conn).writev, soon)
		}
	}
	return c.writev(v, soon)
}

func (c *Conn) writev(v []Vec, soon bool) (int, error) {
	if c.ly != nil {
		return c.ly.WritevLayer(c, v)
	}
	return c.send(v, sendFlags, soon)
}

func (c *Conn) send(v []Vec, flags int, soon bool) (int, error) {
	passed.Release()
	c.tx.Iov = unsafe.SliceData(v)
	c.tx.Iovlen = uint64(len(v))
	for {
		var n uintptr
		var e syscall.Errno
		if len(v) == 1 { // as many messages are
			n, e = pieceCall(unix.SYS_SENDTO, c.fd, v[0], flags, soon)
		} else {
			n, e = msgCall(unix.SYS_SENDMSG, c.fd, &c.tx, flags, soon)
		}
		if e == unix.EINTR {
			continue
		}
		c.tx.Iov = nil
		if e != 0 {
			return 0, e
		}
		if c.opts.BusyPoll == BusyPollOff {
			c.sends.Add(1)
		}
		return int(n), nil
	}
}

// Readv receives into v in one call, which does not block unless it may wait (blocking.go).
// 0 bytes without an error is the end of the stream. For soon see msgCall.
func (c *Conn) Readv(v []Vec, soon bool) (int, error) {
	n, err := c.readv(v, soon)
	if t := tapping.Load(); t != nil {
		if i := t.of(c); i >= 0 {
			t.received(i, v, n, err)
		}
	}
	return n, err
}

// readv is Readv without the tap.
func (c *Conn) readv(v []Vec, soon bool) (int, error) {
	if c.ask {
		return c.readAsk(v, nil, soon)
	}
	if c.drained = false; c.ly != nil {
		return c.ly.ReadvLayer(c, v)
	}
	c.rx.Iov = unsafe.SliceData(v)
	c.rx.Iovlen = uint64(len(v))
	flags := int(c.readvFlags(soon))
	for {
		var n uintptr
		var e syscall.Errno
		if len(v) == 1 {
			n, e = pieceCall(unix.SYS_RECVFROM, c.fd, v[0], flags, soon)
		} else {
			n, e = msgCall(unix.SYS_RECVMSG, c.fd, &c.rx, flags, soon)
		}
		if e == unix.EINTR && !c.call.waited {
			continue
		}
		if e == unix.EINTR {
			e = unix.EAGAIN
		}
		c.rx.Iov = nil
		if e != 0 {
			return 0, e
		}
		passed.Acquire()
		c.arrived(int(n))
		return int(n), nil
	}
}

// readvFlags are those of a Readv. One that the scheduler is told of does not wait: it would
// lose its processor.
func (c *Conn) readvFlags(soon bool) uintptr {
	if soon {
		return c.call.Flags()
	}
	return unix.MSG_DONTWAIT
}

// arrived notes that n bytes have come.
func (c *Conn) arrived(n int) {
	if n > 0 {
		c.arrivals++
		c.call.Came()
	}
}

// Read is Readv with one piece, soon; p must not be empty.
func (c *Conn) Read(p []byte) (int, error) {
	n, err := c.read(p)
	if t := tapping.Load(); t != nil {
		if i := t.of(c); i >= 0 {
			v := [1]Vec{}
			Set(&v[0], p)
			t.received(i, v[:], n, err)
		}
	}
	return n, err
}

func (c *Conn) read(p []byte) (int, error) {
	if c.ask {
		return c.readAsk(nil, p, true)
	}
	if c.drained = false; c.ly != nil {
		return c.ly.ReadLayer(c, p)
	}
	return c.recv(p, c.call.Flags())
}

// readAsk is Readv into v, or Read into p, with the question what is left.
func (c *Conn) readAsk(v []Vec, p []byte, soon bool) (n int, err error) {
	for {
		var e syscall.Errno
		if p != nil {
			n, c.drained, e = c.inq.Recv1(c.fd, &c.rx, p, c.call.Flags())
		} else {
			n, c.drained, e = c.inq.Recv(c.fd, &c.rx, v, soon, c.readvFlags(soon))
		}
		switch e {
		case 0:
			passed.Acquire()
			c.arrived(n)
			return n, nil
		case unix.EINTR:
			if c.call.waited {
				return 0, ErrAgain
			}
		default:
			return 0, e
		}
	}
}

func (c *Conn) recv(p []byte, flags uintptr) (int, error) {
	v := Vec{Base: unsafe.SliceData(p), Len: uint64(len(p))}
	for {
		n, e := pieceCall(unix.SYS_RECVFROM, c.fd, v, int(flags), true)
		if e == unix.EINTR && !c.call.waited {
			continue
		}
		if e == unix.EINTR {
			e = unix.EAGAIN
		}
		if e != 0 {
			return 0, e
		}
		passed.Acquire()
		c.arrived(int(n))
		return int(n), nil
	}
}

// Peek is Read that leaves what it has read in the socket.
func (c *Conn) Peek(p []byte) (int, error) {
	if c.ly != nil {
		return c.ly.PeekLayer(c, p)
	}
	return c.recv(p, unix.MSG_PEEK|unix.MSG_DONTWAIT)
}
