// Package sockio moves bytes over a connected stream socket with vectored,
// non-blocking system calls, and waits in the Go network poller. It is what the
// stream transports above rdma have in common; only it imports x/sys for them.
//
// A Conn has at most one reader and one writer at a time. The descriptor stays
// open until Close, which its owner calls when neither is inside a call;
// Interrupt wakes both up.
package sockio

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"softiser/internal/tcpinq"
)

// Conn is a connected stream socket.
type Conn struct {
	nc net.Conn
	rc syscall.RawConn
	fd int
	rx unix.Msghdr // owned by the reader
	tx unix.Msghdr // owned by the writer

	// Owned by the reader.
	inq     tcpinq.Inq
	ask     bool // reads are to find out whether they have emptied the socket
	drained bool // the last one did
}

// Options of a connection. Zero values keep the system's setting.
type Options struct {
	SendBuffer, RecvBuffer int // SO_SNDBUF and SO_RCVBUF, bytes; setting one ends its auto-tuning
}

// New takes nc, a *net.TCPConn (or *net.UnixConn), over for data: it clears
// deadlines, switches Nagle's algorithm off and applies o.
func New(nc net.Conn, o Options) (*Conn, error) {
	sc, ok := nc.(syscall.Conn)
	if !ok {
		return nil, fmt.Errorf("sockio: %T is not a socket of the operating system; pass a *net.TCPConn", nc)
	}
	rc, err := sc.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("sockio: %w", err)
	}
	c := &Conn{nc: nc, rc: rc, fd: -1}
	_, tcp := nc.(*net.TCPConn)
	var serr error
	set := func(what string, err error) {
		if err != nil && serr == nil {
			serr = fmt.Errorf("sockio: set %s: %w", what, err)
		}
	}
	err = rc.Control(func(p uintptr) {
		c.fd = int(p)
		if tcp {
			set("TCP_NODELAY", unix.SetsockoptInt(c.fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1))
		}
		if o.SendBuffer > 0 {
			set("SO_SNDBUF", unix.SetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_SNDBUF, o.SendBuffer))
		}
		if o.RecvBuffer > 0 {
			set("SO_RCVBUF", unix.SetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_RCVBUF, o.RecvBuffer))
		}
	})
	if err == nil {
		err = nc.SetDeadline(time.Time{})
	}
	if err == nil {
		err = serr
	}
	if err != nil {
		return nil, fmt.Errorf("sockio: %w", err)
	}
	c.inq.Enable(rc, c.fd)
	return c, nil
}

// Errors of the calls below.
var (
	ErrAgain error = unix.EAGAIN // nothing to read, or no room to write, now
	ErrFault error = unix.EFAULT // the memory named cannot be touched; bytes before it may have moved
)

// Net returns the connection that New was given.
func (c *Conn) Net() net.Conn { return c.nc }

// ReadLoop calls f, and again whenever the socket may have become readable, until
// f returns true. f must have met ErrAgain before it returns false, or Drained, and
// have called Waits.
func (c *Conn) ReadLoop(f func(uintptr) bool) error { return c.rc.Read(f) }

// WriteLoop is ReadLoop for writing.
func (c *Conn) WriteLoop(f func(uintptr) bool) error { return c.rc.Write(f) }

// Interrupt makes waiting loops return a time-out error, now and in future,
// without touching the stream. Resume undoes it.
func (c *Conn) Interrupt() { _ = c.nc.SetDeadline(time.Unix(1, 0)) }

// Resume clears every deadline.
func (c *Conn) Resume() { _ = c.nc.SetDeadline(time.Time{}) }

// SetReadDeadline bounds the waits of ReadLoop.
func (c *Conn) SetReadDeadline(t time.Time) { _ = c.nc.SetReadDeadline(t) }

// CloseWrite sends FIN behind what has been written.
func (c *Conn) CloseWrite() error { return unix.Shutdown(c.fd, unix.SHUT_WR) }

// Close closes the socket. Neither reader nor writer may be inside a call.
func (c *Conn) Close() error {
	c.inq.Stop()
	return c.nc.Close()
}

// Ask chooses whether Readv finds out for Drained what it has left.
func (c *Conn) Ask(on bool) { c.ask = on && c.inq.Known() }

// Drained reports whether the last Readv has left nothing in the socket, neither
// bytes nor the end of the stream. It is false when that is not known.
func (c *Conn) Drained() bool { return c.drained }

// Waits is called before ReadLoop is left to wait because of Drained: a reset behind
// the bytes is noticed within tcpinq.Lookout then.
func (c *Conn) Waits() { c.inq.Waits() }

// PeerClosed reports whether the other end of a TCP connection has closed it, though
// not everything that came before may have been read, or whether rc itself has been
// closed. That this end has sent FIN does not count.
func PeerClosed(rc syscall.RawConn) bool {
	over := false
	err := rc.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		if err != nil {
			return
		}
		switch info.State {
		case unix.BPF_TCP_ESTABLISHED, unix.BPF_TCP_FIN_WAIT1, unix.BPF_TCP_FIN_WAIT2:
		default:
			over = true
		}
	})
	return over || err != nil
}

// Readable waits until there is something to read from a socket, or, of one that listens,
// to accept, but no longer than for a moment: it holds up whoever closes the socket, and
// a thread.
func Readable(rc syscall.RawConn, moment time.Duration) (ready bool, err error) {
	cerr := rc.Control(func(fd uintptr) {
		n, perr := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(moment.Milliseconds()))
		ready = n > 0
		if perr != unix.EINTR {
			err = perr
		}
	})
	if cerr != nil {
		return false, cerr
	}
	return ready, err
}

// IsTimeout reports whether err comes from Interrupt or a deadline.
func IsTimeout(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }

// MaxVec is the largest number of pieces in one call (the kernel's UIO_MAXIOV).
const MaxVec = 1024

// Vec is one piece of memory in a vectored call.
type Vec = unix.Iovec

// Append appends p, unless it is empty.
func Append(v []Vec, p []byte) []Vec {
	if len(p) == 0 {
		return v
	}
	return append(v, Vec{Base: unsafe.SliceData(p), Len: uint64(len(p))})
}

// Writev sends v in one call and returns how many bytes the socket took.
func (c *Conn) Writev(v []Vec) (int, error) {
	n, err := c.msg(unix.SYS_SENDMSG, &c.tx, v, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	return n, err
}

// Readv receives into v in one call. 0 bytes without an error is the end of the
// stream.
func (c *Conn) Readv(v []Vec) (int, error) {
	c.drained = false
	for c.ask {
		n, empty, e := c.inq.Recv(c.fd, &c.rx, v, false)
		if e != unix.EINTR {
			c.drained = empty
			return n, errnoError(e)
		}
	}
	return c.msg(unix.SYS_RECVMSG, &c.rx, v, unix.MSG_DONTWAIT)
}

func (c *Conn) msg(call uintptr, h *unix.Msghdr, v []Vec, flags int) (int, error) {
	h.Iov, h.Iovlen = unsafe.SliceData(v), uint64(len(v))
	defer func() { h.Iov = nil }()
	for {
		n, _, e := unix.Syscall(call, uintptr(c.fd), uintptr(unsafe.Pointer(h)), uintptr(flags))
		switch e {
		case 0:
			return int(n), nil
		case unix.EINTR:
		default:
			return 0, errnoError(e)
		}
	}
}

// errnoError is e as an error, without an allocation for the usual ones.
func errnoError(e syscall.Errno) error {
	switch e {
	case 0:
		return nil
	case unix.EAGAIN:
		return ErrAgain
	case unix.EFAULT:
		return ErrFault
	}
	return e
}
