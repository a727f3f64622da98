package sockio

import (
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"softiser/internal/congestion"
)

// HostBuffer is SO_RCVBUF of a connection within one host, bytes. The kernel would raise the buffer
// to tens of MiB there, though a round trip takes microseconds: what is on its way has left the
// caches by then, and a receiver that keeps up sleeps between two bursts. Less than half of this
// makes the sender wait for windows (ADR 217).
const HostBuffer = 1 << 20

// Options of a TCP connection. Zero values keep the system's setting.
type Options struct {
	// SendBuffer and RecvBuffer are SO_SNDBUF and SO_RCVBUF, bytes; setting one ends its
	// auto-tuning. RecvBuffer 0 is HostBuffer between two ends on the same host.
	SendBuffer, RecvBuffer int

	// BusyPoll is how long a Waiter spins on the empty socket before it parks; BusyPollAuto,
	// which is 0, and BusyPollOff are values of their own.
	BusyPoll time.Duration
	Crowd    *Crowd // of BusyPollAuto: who makes way for whom; nil: all connections of the process

	Tally *Tally // which the connection is part of; nil: of none
}

// Apply sets o on nc and switches Nagle's algorithm off (RFC 5044 §5: FPDUs
// should not wait). Sockets that are not TCP are left alone.
func Apply(nc net.Conn, o Options) error {
	tc, ok := nc.(*net.TCPConn)
	if !ok {
		return nil
	}
	rc, err := tc.SyscallConn()
	if err != nil {
		return fmt.Errorf("sockio: %w", err)
	}
	var serr error
	set := func(what string, err error) {
		if err != nil && serr == nil {
			serr = fmt.Errorf("sockio: set %s: %w", what, err)
		}
	}
	err = rc.Control(func(p uintptr) {
		fd := int(p)
		set("TCP_NODELAY", unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1))
		if o.SendBuffer > 0 {
			set("SO_SNDBUF", unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, o.SendBuffer))
		}
		if o.RecvBuffer > 0 {
			set("SO_RCVBUF", unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, o.RecvBuffer))
		} else if congestion.SameHost(nc) {
			bound(fd, HostBuffer)
		}
	})
	if err != nil {
		return fmt.Errorf("sockio: %w", err)
	}
	return serr
}

// bound fixes the receive buffer of a socket at n bytes if nobody has fixed it, and the kernel
// grants as much (net.core.rmem_max, or CAP_NET_ADMIN). Otherwise it goes on tuning it by itself: this is
// a matter of speed alone.
func bound(fd, n int) {
	before, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BUF_LOCK) // since Linux 5.15
	if err != nil || before&unix.SOCK_RCVBUF_LOCK != 0 {
		return
	}
	for _, opt := range [...]int{unix.SO_RCVBUF, unix.SO_RCVBUFFORCE} {
		if unix.SetsockoptInt(fd, unix.SOL_SOCKET, opt, n) != nil {
			break
		}
		if got, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF); err == nil && got >= 2*n { // socket(7): doubled
			return
		}
	}
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BUF_LOCK, before)
}

// MSS is the largest TCP payload that fits one segment towards the peer, 0 when
// the socket is not TCP.
func (c *Conn) MSS() int {
	if _, ok := c.nc.(*net.TCPConn); !ok {
		return 0
	}
	ti, err := unix.GetsockoptTCPInfo(c.fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return 0
	}
	return int(ti.Snd_mss)
}

// Linger reads and drops what arrives until the stream ends or d has passed. A
// close with unread bytes would make TCP send a reset, which destroys what is
// still on its way to the peer, such as a Terminate.
func (c *Conn) Linger(d time.Duration) {
	end := time.Now().Add(d)
	c.SetReadDeadline(end)
	var scratch [4096]byte
	_ = c.ReadLoop(func(uintptr) bool {
		for {
			if time.Now().After(end) { // a deadline ends waiting alone, and a peer may always have more
				return true
			}
			n, err := c.Read(scratch[:])
			if err == ErrAgain {
				return false
			}
			if err != nil || n == 0 {
				return true
			}
		}
	})
}
