package sock

import (
	"fmt"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"softiser/internal/tcpinq"
)

// Conn is a connected stream socket (TCP, or a Unix stream socket in tests).
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

// New takes nc over. The only socket option that it changes is TCP_INQ.
func New(nc net.Conn) (*Conn, error) {
	sc, ok := nc.(syscall.Conn)
	if !ok {
		return nil, fmt.Errorf("sock: %T is not a socket of the operating system; pass a *net.TCPConn", nc)
	}
	rc, err := sc.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("sock: %w", err)
	}
	c := &Conn{nc: nc, rc: rc, fd: -1}
	if err := rc.Control(func(fd uintptr) { c.fd = int(fd) }); err != nil {
		return nil, fmt.Errorf("sock: %w", err)
	}
	// Deadlines of the start-up phase must not end the data phase.
	if err := nc.SetDeadline(time.Time{}); err != nil {
		return nil, fmt.Errorf("sock: %w", err)
	}
	c.inq.Enable(rc, c.fd)
	return c, nil
}

// Net is the connection that New was given.
func (c *Conn) Net() net.Conn { return c.nc }

// ErrAgain: nothing to read, or no room to write, at the moment.
var ErrAgain error = unix.EAGAIN

// ErrFault: the memory named in a call cannot be touched (a truncated mapping, a
// failing disk behind it). Bytes before the fault may have moved.
var ErrFault error = unix.EFAULT

// ReadLoop calls f, and again whenever the socket has become readable, until f
// returns true. f must have read until ErrAgain before it returns false, or until
// Drained, and have called Waits.
func (c *Conn) ReadLoop(f func(uintptr) bool) error { return c.rc.Read(f) }

// WriteLoop is ReadLoop for writing.
func (c *Conn) WriteLoop(f func(uintptr) bool) error { return c.rc.Write(f) }

// Interrupt makes ReadLoop and WriteLoop return with a time-out error, now and in
// future, without touching the stream.
func (c *Conn) Interrupt() { _ = c.nc.SetDeadline(time.Unix(1, 0)) }

// SetReadDeadline bounds the next waits of ReadLoop; zero means no bound.
func (c *Conn) SetReadDeadline(t time.Time) { _ = c.nc.SetReadDeadline(t) }

// SetWriteDeadline bounds the next waits of WriteLoop; zero means no bound.
func (c *Conn) SetWriteDeadline(t time.Time) { _ = c.nc.SetWriteDeadline(t) }

// CloseWrite sends FIN behind what has been written.
func (c *Conn) CloseWrite() error { return unix.Shutdown(c.fd, unix.SHUT_WR) }

// Close closes the socket. Neither reader nor writer may be inside a call.
func (c *Conn) Close() error {
	c.inq.Stop()
	return c.nc.Close()
}

// Ask chooses whether reads find out for Drained what they have left.
func (c *Conn) Ask(on bool) { c.ask = on && c.inq.Known() }

// Drained reports whether the last Read or Readv has left nothing in the socket,
// neither bytes nor the end of the stream. It is false when that is not known.
func (c *Conn) Drained() bool { return c.drained }

// Waits is called before ReadLoop is left to wait because of Drained: a reset behind
// the bytes is noticed within tcpinq.Lookout then.
func (c *Conn) Waits() { c.inq.Waits() }
