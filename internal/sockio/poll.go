package sockio

import (
	"io"

	"golang.org/x/sys/unix"
)

// quietBytes is what a socket collects before it tells the poller, see Quiet. Twice
// as much must fit the usual receive buffer, or the kernel would change its size.
const quietBytes = 32 << 10

// Quiet keeps the poller from being told of arriving bytes until quietBytes are
// there: for a reader that looks by itself, where the events would only wake up
// the thread that waits in the poller. Quiet(false) ends that, and raises the event
// for what has arrived.
func (c *Conn) Quiet(on bool) {
	n := 1
	if on {
		n = quietBytes
	}
	_ = unix.SetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_RCVLOWAT, n)
}

// Arrivals grows with each read that brings something.
func (c *Conn) Arrivals() uint64 { return c.arrivals }

// Readable reports whether a read would return something: bytes, the end of the
// stream, or an error. The kernel tells an error once: End has it from then on.
func (c *Conn) Readable() bool {
	if c.ly != nil && c.ly.Holds() {
		return true
	}
	var b [1]byte
	_, e := pieceCall(unix.SYS_RECVFROM, c.fd, Vec{Base: &b[0], Len: 1}, unix.MSG_DONTWAIT|unix.MSG_PEEK, true)
	if e == unix.EAGAIN || e == unix.EINTR {
		return false
	}
	if e != 0 {
		c.broken = e
	}
	return true
}

// End says how the stream has ended, of which a read has returned no bytes: io.EOF, or the
// error that Readable has met.
func (c *Conn) End() error {
	if c.broken != 0 {
		return c.broken
	}
	return io.EOF
}
