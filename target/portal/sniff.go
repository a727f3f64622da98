package portal

import (
	"encoding/binary"
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
	NVMe                      // NVMe over Fabrics, over TCP and RDMA
)

// Transport is what carries it.
type Transport uint8

// Transports.
const (
	TCP Transport = 1 + iota
	RDMA
	TLS  // over TCP
	RoCE // RDMA over UDP
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
	case Hello{NVMe, RDMA}:
		return "NVMe/RDMA"
	case Hello{ISCSI, RoCE}:
		return "iSER/RoCE"
	case Hello{NVMe, RoCE}:
		return "NVMe/RoCE"
	case Hello{NVMe, TLS}:
		return "NVMe/TCP with TLS"
	case Hello{ISCSI, TLS}:
		return "iSCSI/TCP with TLS"
	}
	return "unknown"
}

// known reports whether enough has come to tell.
func (h Hello) known() bool { return h.Transport != 0 }

// mpaKey opens every MPA Request frame (RFC 5044 §7.1).
const mpaKey = "MPA ID Req Frame"

// Lengths of parts of an MPA Request frame, bytes.
const (
	mpaHeader  = len(mpaKey) + 4 // flags, revision, length of the private data
	mpaWord    = 4               // IRD and ORD (RFC 6581 §9), where mpaEnhanced says so
	mpaPrivate = 512             // the most private data that a frame has, with that word
)

// mpaEnhanced is the flag S, from revision 2 on.
const mpaEnhanced = 0x10

// icReq is how the first PDU of an NVMe/TCP host begins, ICReq: its type, no flags, and
// twice its length.
const icReq = "\x00\x00\x80\x00\x80\x00\x00\x00"

// clientHello is how a TLS connection begins: a handshake record of version 3.x. NVMe is
// spoken inside, or iSCSI (see classifyTLS).
const clientHello = "\x16\x03"

// errUnknown says that a peer speaks none of the protocols.
var errUnknown = errors.New("neither an iSCSI login nor an MPA request nor NVMe/TCP nor TLS")

// errPrivate says that it asks for RDMA, with private data of none of the protocols.
var errPrivate = errors.New("a request with private data that is neither iSER's nor NVMe's")

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
	if n := min(len(b), len(clientHello)); string(b[:n]) == clientHello[:n] {
		if n < len(clientHello) {
			return Hello{}, nil
		}
		return Hello{NVMe, TLS}, nil
	}
	if n := min(len(b), len(icReq)); string(b[:n]) == icReq[:n] {
		if n < len(icReq) {
			return Hello{}, nil
		}
		return Hello{NVMe, TCP}, nil
	}
	n := min(len(b), len(mpaKey))
	if string(b[:n]) != mpaKey[:n] {
		return Hello{}, fmt.Errorf("%w (first bytes % x)", errUnknown, b[:n])
	}
	if len(b) < mpaHeader {
		return Hello{}, nil
	}
	return classifyMPA(b)
}

// classifyMPA looks at an MPA Request frame whose header is there. What it is for only the
// private data says. Frames that break the rules of MPA count as iSER's, which refuses
// them.
func classifyMPA(b []byte) (Hello, error) {
	n := int(binary.BigEndian.Uint16(b[mpaHeader-2:]))
	skip := 0
	if b[len(mpaKey)]&mpaEnhanced != 0 && b[len(mpaKey)+1] > 1 {
		skip = mpaWord
	}
	if n > mpaPrivate || n < skip {
		return Hello{ISCSI, RDMA}, nil
	}
	if len(b) < mpaHeader+n {
		return Hello{}, nil
	}
	return classifyPrivate(b[mpaHeader+skip:mpaHeader+n], RDMA)
}

// classifyPrivate looks at the private data of a request for a connection.
func classifyPrivate(p []byte, t Transport) (Hello, error) {
	switch {
	case asksNVMe(p):
		return Hello{NVMe, t}, nil
	case asksISER(p):
		return Hello{ISCSI, t}, nil
	case len(p) >= nvmePrivate:
		return Hello{NVMe, t}, nil // its front end answers what is wrong with it
	}
	return Hello{}, fmt.Errorf("%w (% x)", errPrivate, p)
}

// nvmePrivate is the length of the private data of an NVMe/RDMA host, bytes.
const nvmePrivate = 32

// asksNVMe reports whether p is private data of an NVMe/RDMA host: record format 0, and a
// receive queue that has entries.
func asksNVMe(p []byte) bool {
	return len(p) >= 6 && p[0] == 0 && p[1] == 0 && (p[4] != 0 || p[5] != 0)
}

// asksISER reports whether p is private data of an iSER initiator: Linux' header, which is
// two flags in four bytes, or nothing.
func asksISER(p []byte) bool {
	const flags = 0xC0 // no zero based addresses, no remote invalidation
	for i, v := range p {
		if i == 0 {
			v &^= flags
		}
		if v != 0 {
			return false
		}
	}
	return true
}

// sniff waits for the bytes that tell the protocol of a connection, and leaves them in the
// socket, so that every transport starts on an untouched stream. The read deadline of c bounds
// the wait; it ends at once when the peer has closed its side, as nothing more can come.
// certificates says that the portal has TLS with certificates, so that a ClientHello may be an
// iSCSI initiator's.
func sniff(c *net.TCPConn, certificates bool) (Hello, error) {
	rc, err := c.SyscallConn()
	if err != nil {
		return Hello{}, err
	}
	var (
		room  [mpaHeader + mpaPrivate]byte
		buf   = room[:]
		hello Hello
		fail  error
	)
	err = rc.Read(func(fd uintptr) bool {
		last := sockio.PeerEnded(int(fd)) // before the look, which then sees everything
		n, err := peek(fd, buf)
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
		if hello == (Hello{NVMe, TLS}) && certificates {
			var need int
			if hello, need = classifyTLS(buf[:n]); need > len(buf) {
				buf = make([]byte, need)
				if n, err = peek(fd, buf); err == nil {
					hello, _ = classifyTLS(buf[:n])
				}
			}
		}
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

// peek reads what has come, and leaves it.
func peek(fd uintptr, b []byte) (n int, err error) {
	for {
		n, _, err = syscall.Recvfrom(int(fd), b, syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		if err != syscall.EINTR {
			return n, err
		}
	}
}
