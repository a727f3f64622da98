// Package sockio moves bytes over a connected stream socket with vectored,
// non-blocking system calls, and waits in the Go network poller. It is the byte stream
// below MPA, iSCSI over TCP and NVMe/TCP; only it imports x/sys for them. Of this
// module it imports three leaves: internal/congestion, internal/memfault and internal/race.
//
//	conn, opts   a connection, its settings, its end
//	ends         which of many connections have their peers closed?
//	layer        what changes the bytes on their way, such as TLS
//	vec          reading and writing pieces of memory in one call
//	inq          has the last read emptied the socket? so that nobody asks again
//	waiting      a reader that looks for a while before it parks
//	early        of many messages that end a wait, a part goes first
//	autopoll     when that pays
//	apart        ... and not on the processor of its peer
//	blocking     a reader that waits in the read, without the poller
//	poll         looking instead of waiting
//	tally        what TCP tells of connections, added up
//	zerocopy     sending by reference, and the notices of its end
//	tap          a copy of what a connection sends and receives, on demand
//
// A Conn has at most one reader and one writer at a time; which goroutine that is may
// change. The descriptor stays open until Close, which its owner calls when neither is
// inside a call; Interrupt wakes both up.
package sockio

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Conn is a connected stream socket (TCP, or a Unix stream socket in tests).
type Conn struct {
	nc   net.Conn
	ly   Layer // nil: none
	rc   syscall.RawConn
	fd   int
	rx   unix.Msghdr // owned by the reader
	tx   unix.Msghdr // owned by the writer
	one  Vec         // of Send
	opts Options

	// Owned by the reader.
	inq      Inq
	arrivals uint64        // reads that have brought something
	broken   syscall.Errno // Readable has met it, and no read will
	ask      bool          // reads are to find out whether they have emptied the socket
	drained  bool          // the last one did
	call     InCall        // the reads that may wait

	byRef atomic.Int64 // calls by reference of whose end no notice has told

	sends atomic.Uint64 // calls that have sent something, where a reader may wait

	tapped atomic.Uint64 // which Tap has judged it last, and which of that one's connections it is; see Tap.of
}

// New takes nc, a *net.TCPConn (or *net.UnixConn), or a Layer above one, over for data: it
// clears deadlines, which must not end the data phase, and applies o.
func New(nc net.Conn, o Options) (*Conn, error) {
	ly, _ := nc.(Layer)
	if ly != nil {
		nc = ly.NetConn()
	}
	sc, ok := nc.(syscall.Conn)
	if !ok {
		return nil, fmt.Errorf("sockio: %T is not a socket of the operating system; pass a *net.TCPConn", nc)
	}
	rc, err := sc.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("sockio: %w", err)
	}
	c := &Conn{nc: nc, ly: ly, rc: rc, fd: -1, opts: o}
	if err := rc.Control(func(fd uintptr) { c.fd = int(fd) }); err != nil {
		return nil, fmt.Errorf("sockio: %w", err)
	}
	if err := nc.SetDeadline(time.Time{}); err != nil {
		return nil, fmt.Errorf("sockio: %w", err)
	}
	if err := Apply(nc, o); err != nil {
		return nil, err
	}
	c.call = InCall{fd: c.fd, sends: &c.sends, never: ly != nil}
	c.inq.Enable(rc, c.fd)
	o.Tally.enter(c)
	c.beginTap()
	return c, nil
}

// Errors of the calls below.
var (
	ErrAgain error = unix.EAGAIN // nothing to read, or no room to write, now
	ErrFault error = unix.EFAULT // the memory named cannot be touched; bytes before it may have moved
)

// Net returns the connection that New was given, without layers.
func (c *Conn) Net() net.Conn { return c.nc }

// ReadLoop calls f, and again whenever the socket may have become readable, until
// f returns true. f must have met ErrAgain before it returns false, or Drained, and
// have called Waits, or Waiter.Enough.
func (c *Conn) ReadLoop(f func(uintptr) bool) error { return c.rc.Read(f) }

// WriteLoop is ReadLoop for writing.
func (c *Conn) WriteLoop(f func(uintptr) bool) error { return c.rc.Write(f) }

// Interrupt makes waiting loops return a time-out error, now and in future,
// without touching the stream. Resume undoes it.
func (c *Conn) Interrupt() { _ = c.nc.SetDeadline(time.Unix(1, 0)) }

// Resume clears every deadline.
func (c *Conn) Resume() { _ = c.nc.SetDeadline(time.Time{}) }

// SetReadDeadline bounds the waits of ReadLoop; zero means no bound.
func (c *Conn) SetReadDeadline(t time.Time) { _ = c.nc.SetReadDeadline(t) }

// SetWriteDeadline bounds the waits of WriteLoop; zero means no bound.
func (c *Conn) SetWriteDeadline(t time.Time) { _ = c.nc.SetWriteDeadline(t) }

// CloseWrite sends FIN behind what has been written, and behind what Finish has to say, if that goes now.
func (c *Conn) CloseWrite() error {
	_ = Finish(c)
	c.endTap(false)
	return unix.Shutdown(c.fd, unix.SHUT_WR)
}

// Close closes the socket. Neither reader nor writer may be inside a call.
func (c *Conn) Close() error {
	c.Drop()
	return c.nc.Close()
}

// Drop ends c for its tally and for a capture, and leaves the connection that New was given as it
// is. It is for a caller that closes that itself.
func (c *Conn) Drop() {
	c.inq.Stop()
	c.endTap(true)
	c.opts.Tally.leave(c)
}

// Ask chooses whether reads find out for Drained what they have left.
func (c *Conn) Ask(on bool) { c.ask = on && c.inq.Known() && c.ly == nil }

// Drained reports whether the last Read or Readv has left nothing in the socket, neither
// bytes nor the end of the stream. It is false when that is not known.
func (c *Conn) Drained() bool { return c.drained }

// Waits is called before ReadLoop is left to wait because of Drained: a reset behind
// the bytes is noticed within Lookout then.
func (c *Conn) Waits() { c.inq.Waits() }

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
