package portal

import (
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"

	"softiser/internal/sockio"
)

// Protocol is what a connection is about; each has a front end (see Frontend).
type Protocol uint8

// Protocols.
const (
	ISCSI Protocol = 1 + iota // over TCP, and over RDMA as iSER
	NVMe                      // NVMe over Fabrics, over TCP
)

// Transport is what carries it.
type Transport uint8

// Transports.
const (
	TCP Transport = 1 + iota
	RDMA
)

// Hello is what the first bytes of a connection say.
type Hello struct {
	Protocol  Protocol
	Transport Transport
}

func (h Hello) String() string {
	switch h {
	case Hello{ISCSI, TCP}:
		return "iSCSI/TCP"
	case Hello{ISCSI, RDMA}:
		return "iSER"
	case Hello{NVMe, TCP}:
		return "NVMe/TCP"
	}
	return "unknown"
}

// known reports whether enough has come to tell.
func (h Hello) known() bool { return h.Transport != 0 }

// mpaKey opens every MPA Request frame (RFC 5044 §7.1).
const mpaKey = "MPA ID Req Frame"

// icReq is how the first PDU of an NVMe/TCP host begins, ICReq: its type, no flags, and
// twice its length.
const icReq = "\x00\x00\x80\x00\x80\x00\x00\x00"

// errUnknown says that a peer speaks none of the protocols.
var errUnknown = errors.New("neither an iSCSI login nor an MPA request nor NVMe/TCP")

// classify looks at the first bytes of a connection. It returns unknown with a
// nil error while more bytes may still decide.
func classify(b []byte) (Hello, error) {
	if len(b) == 0 {
		return Hello{}, nil
	}
	// A Login Request is always immediate (0x43); initiators that leave the bit
	// away (0x03) are understood as well (RFC 7143 §11.12).
	if b[0] == 0x43 || b[0] == 0x03 {
		return Hello{ISCSI, TCP}, nil
	}
	if n := min(len(b), len(icReq)); string(b[:n]) == icReq[:n] {
		if n < len(icReq) {
			return Hello{}, nil
		}
		return Hello{NVMe, TCP}, nil
	}
	n := min(len(b), len(mpaKey))
	if string(b[:n]) != mpaKey[:n] {
		return Hello{}, fmt.Errorf("%w (first bytes % x)", errUnknown, b)
	}
	if n == len(mpaKey) {
		return Hello{ISCSI, RDMA}, nil
	}
	return Hello{}, nil
}

// sniff waits for the bytes that tell what a connection is and leaves them in the
// socket: siw treats anything read too early as a protocol error, and so both
// transports start on an untouched stream. The read deadline of c bounds it, but
// a peer that has ended its side is not waited for: nothing more can decide.
func sniff(c *net.TCPConn) (Hello, error) {
	rc, err := c.SyscallConn()
	if err != nil {
		return Hello{}, err
	}
	var (
		buf   [len(mpaKey)]byte
		hello Hello
		fail  error
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
		hello, fail = classify(buf[:n])
		if !hello.known() && fail == nil && last {
			fail = io.ErrUnexpectedEOF
		}
		return hello.known() || fail != nil
	})
	if err != nil {
		return Hello{}, err
	}
	return hello, fail
}
