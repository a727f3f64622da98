package target

import (
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"

	"softiser/internal/sockio"
)

// transport is what the first bytes of a connection ask for.
type transport uint8

const (
	transportUnknown transport = iota
	transportTCP               // an iSCSI Login Request
	transportISER              // an MPA Request
)

func (t transport) String() string {
	switch t {
	case transportTCP:
		return "iSCSI/TCP"
	case transportISER:
		return "iSER"
	}
	return "unknown"
}

// mpaKey opens every MPA Request frame (RFC 5044 §7.1).
const mpaKey = "MPA ID Req Frame"

// errNotISCSI says that a peer speaks neither iSCSI nor MPA.
var errNotISCSI = errors.New("neither an iSCSI login nor an MPA request")

// classify looks at the first bytes of a connection. It returns unknown with a
// nil error while more bytes may still decide.
func classify(b []byte) (transport, error) {
	if len(b) == 0 {
		return transportUnknown, nil
	}
	// A Login Request is always immediate (0x43); initiators that leave the bit
	// away (0x03) are understood as well (RFC 7143 §11.12).
	if b[0] == 0x43 || b[0] == 0x03 {
		return transportTCP, nil
	}
	n := min(len(b), len(mpaKey))
	if string(b[:n]) != mpaKey[:n] {
		return transportUnknown, fmt.Errorf("%w (first bytes % x)", errNotISCSI, b)
	}
	if n == len(mpaKey) {
		return transportISER, nil
	}
	return transportUnknown, nil
}

// sniff waits for the bytes that tell the transport and leaves them in the
// socket: siw treats anything read too early as a protocol error, and so both
// transports start on an untouched stream. The read deadline of c bounds it, but
// a peer that has ended its side is not waited for: nothing more can decide.
func sniff(c *net.TCPConn) (transport, error) {
	rc, err := c.SyscallConn()
	if err != nil {
		return transportUnknown, err
	}
	var (
		buf  [len(mpaKey)]byte
		kind transport
		fail error
	)
	err = rc.Read(func(fd uintptr) bool {
		last := sockio.PeerEnded(int(fd)) // before the look, which then sees everything
		n, _, err := syscall.Recvfrom(int(fd), buf[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		for err == syscall.EINTR {
			n, _, err = syscall.Recvfrom(int(fd), buf[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		}
		switch {
		case err == syscall.EAGAIN:
			return false
		case err != nil:
			fail = err
			return true
		case n == 0:
			fail = io.EOF
			return true
		}
		kind, fail = classify(buf[:n])
		if kind == transportUnknown && fail == nil && last {
			fail = io.ErrUnexpectedEOF
		}
		return kind != transportUnknown || fail != nil
	})
	if err != nil {
		return transportUnknown, err
	}
	return kind, fail
}
