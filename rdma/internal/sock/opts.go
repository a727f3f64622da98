package sock

import (
	"fmt"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"softiser/internal/tcpinq"
)

// Options of a TCP connection. Zero values keep the system's setting.
type Options struct {
	SndBuf, RcvBuf int // bytes, SO_SNDBUF and SO_RCVBUF; fixes the size, auto-tuning ends
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
		return fmt.Errorf("sock: %w", err)
	}
	var serr error
	set := func(what string, err error) {
		if err != nil && serr == nil {
			serr = fmt.Errorf("sock: set %s: %w", what, err)
		}
	}
	err = rc.Control(func(p uintptr) {
		fd := int(p)
		set("TCP_NODELAY", unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1))
		if o.SndBuf > 0 {
			set("SO_SNDBUF", unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, o.SndBuf))
		}
		if o.RcvBuf > 0 {
			set("SO_RCVBUF", unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, o.RcvBuf))
		}
	})
	if err != nil {
		return fmt.Errorf("sock: %w", err)
	}
	return serr
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

// Peek waits until n bytes can be read, without consuming them, and copies them
// to p[:n]. It returns early, with fewer bytes, when the stream ends. The
// connection's read deadline bounds the wait.
func Peek(nc net.Conn, p []byte) (int, error) {
	sc, ok := nc.(syscall.Conn)
	if !ok {
		return 0, fmt.Errorf("sock: cannot look ahead on a %T; pass a *net.TCPConn", nc)
	}
	rc, err := sc.SyscallConn()
	if err != nil {
		return 0, fmt.Errorf("sock: %w", err)
	}
	var n int
	var rerr error
	last := -1
	err = rc.Read(func(fd uintptr) bool {
		for {
			n, _, rerr = unix.Recvfrom(int(fd), p, unix.MSG_PEEK|unix.MSG_DONTWAIT)
			switch {
			case rerr == unix.EINTR:
				continue
			case rerr == unix.EAGAIN:
				rerr = nil
				n = 0
				return false
			case rerr != nil || n == 0 || n == len(p):
				return true
			}
			// A peek leaves the bytes in the socket, so end of stream behind them
			// shows only as no growth; a wait would not be woken by it again.
			if n == last && tcpinq.PeerEnded(int(fd)) {
				return true
			}
			last = n
			if tcpinq.PeerEnded(int(fd)) {
				continue
			}
			return false
		}
	})
	if rerr != nil {
		return 0, fmt.Errorf("sock: look ahead: %w", rerr)
	}
	if err != nil {
		return n, fmt.Errorf("sock: look ahead: %w", err)
	}
	return n, nil
}

// Linger reads and drops what arrives until the stream ends or d has passed. A
// close with unread bytes would make TCP send a reset, which destroys what is
// still on its way to the peer, such as a Terminate.
func (c *Conn) Linger(d time.Duration) {
	c.SetReadDeadline(time.Now().Add(d))
	var scratch [4096]byte
	_ = c.ReadLoop(func(uintptr) bool {
		for {
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
