package nbd

import (
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"
	"time"
)

// Generic netlink, as far as the kernel's nbd driver needs it. Integers are in
// the host's order; every attribute begins on four bytes.
//
//	+---------------------------------------------------------------+
//	|                        message length                         |
//	+-------------------------------+-------------------------------+
//	|             type              |             flags             |
//	+-------------------------------+-------------------------------+
//	|                           sequence                            |
//	+---------------------------------------------------------------+
//	|                             port                              |
//	+---------------+---------------+-------------------------------+
//	|    command    |    version    |           reserved            |
//	+---------------+---------------+-------------------------------+
//	|       attribute length        |        attribute type         |
//	+-------------------------------+-------------------------------+
//	|  attribute value, padded …
const (
	nlHeader   = 16
	genlHeader = 4
	nlRequest  = 1
	nlAck      = 4
	nlError    = 2
	nlNested   = 1 << 15
	nlTypeMask = 1<<14 - 1

	genlCtrl        = 16 // the family that knows the others
	ctrlGetFamily   = 3
	ctrlAttrID      = 1
	ctrlAttrName    = 2
	nbdFamily       = "nbd"
	nbdConnect      = 1
	nbdDisconnect   = 2
	nbdReconfigure  = 3
	nbdAttrIndex    = 1
	nbdAttrSize     = 2
	nbdAttrBlock    = 3
	nbdAttrTimeout  = 4
	nbdAttrFlags    = 5
	nbdAttrSockets  = 7
	nbdAttrDeadConn = 8
	nbdAttrBackend  = 10
	nbdSockItem     = 1
	nbdSockFD       = 1
)

var host = binary.NativeEndian

// message is a generic netlink request being built.
type message struct{ b []byte }

func newMessage(typ uint16, cmd uint8, seq uint32) *message {
	m := &message{make([]byte, nlHeader+genlHeader, 256)}
	host.PutUint16(m.b[4:], typ)
	host.PutUint16(m.b[6:], nlRequest|nlAck)
	host.PutUint32(m.b[8:], seq)
	m.b[16], m.b[17] = cmd, 1
	return m
}

// bytes returns the finished message.
func (m *message) bytes() []byte {
	host.PutUint32(m.b, uint32(len(m.b)))
	return m.b
}

func (m *message) attr(typ uint16, value []byte) {
	m.b = host.AppendUint16(m.b, uint16(4+len(value)))
	m.b = host.AppendUint16(m.b, typ)
	m.b = append(m.b, value...)
	for len(m.b)%4 != 0 {
		m.b = append(m.b, 0)
	}
}

func (m *message) u32(typ uint16, v uint32) { m.attr(typ, host.AppendUint32(nil, v)) }
func (m *message) u64(typ uint16, v uint64) { m.attr(typ, host.AppendUint64(nil, v)) }
func (m *message) str(typ uint16, s string) { m.attr(typ, append([]byte(s), 0)) }

// nest adds an attribute that holds what f adds.
func (m *message) nest(typ uint16, f func()) {
	at := len(m.b)
	m.b = append(m.b, 0, 0, 0, 0)
	f()
	host.PutUint16(m.b[at:], uint16(len(m.b)-at))
	host.PutUint16(m.b[at+2:], typ|nlNested)
}

var errNetlink = errors.New("malformed netlink message")

// parseMessages walks the messages of one datagram. f gets the payload behind
// the generic header of answers; an error message ends the walk with its errno
// (done reports the acknowledgement, errno 0).
func parseMessages(p []byte, seq uint32, f func(payload []byte) error) (done bool, err error) {
	for len(p) > 0 {
		if len(p) < nlHeader {
			return false, errNetlink
		}
		n := int(host.Uint32(p))
		if n < nlHeader || n > len(p) {
			return false, errNetlink
		}
		typ, s, body := host.Uint16(p[4:]), host.Uint32(p[8:]), p[nlHeader:n]
		p = p[min((n+3)&^3, len(p)):]
		switch {
		case s != seq:
			continue // the answer to an earlier request
		case typ == nlError:
			if len(body) < 4 {
				return false, errNetlink
			}
			if e := int32(host.Uint32(body)); e != 0 {
				return true, syscall.Errno(-e)
			}
			return true, nil
		case len(body) < genlHeader:
			return false, errNetlink
		}
		if err := f(body[genlHeader:]); err != nil {
			return false, err
		}
	}
	return false, nil
}

// findAttr returns the value of the first attribute of a type.
func findAttr(p []byte, want uint16) ([]byte, bool) {
	for len(p) >= 4 {
		n, typ := int(host.Uint16(p)), host.Uint16(p[2:])&nlTypeMask
		if n < 4 || n > len(p) {
			return nil, false
		}
		if typ == want {
			return p[4:n], true
		}
		p = p[min((n+3)&^3, len(p)):]
	}
	return nil, false
}

// seconds is d, which is positive, in the unit of the driver's time-outs, rounded up: 0 would be none.
func seconds(d time.Duration) uint64 { return uint64((d-1)/time.Second) + 1 }

// connectMessage asks the driver for a device on the given sockets; index <0:
// any free one.
func connectMessage(family uint16, seq uint32, k *KernelConfig, fds []int) []byte {
	m := newMessage(family, nbdConnect, seq)
	if k.Index >= 0 {
		m.u32(nbdAttrIndex, uint32(k.Index))
	}
	m.u64(nbdAttrSize, uint64(k.Size))
	m.u64(nbdAttrBlock, uint64(k.BlockSize))
	if k.Timeout > 0 {
		m.u64(nbdAttrTimeout, seconds(k.Timeout))
	}
	m.u64(nbdAttrFlags, uint64(k.Flags))
	if k.DeadConn > 0 {
		m.u64(nbdAttrDeadConn, seconds(k.DeadConn))
	}
	if k.Mark != "" {
		m.str(nbdAttrBackend, k.Mark)
	}
	m.nest(nbdAttrSockets, func() {
		for _, fd := range fds {
			m.nest(nbdSockItem, func() { m.u32(nbdSockFD, uint32(fd)) })
		}
	})
	return m.bytes()
}

// resizeMessage tells the driver the size of a device. The driver wants to hear the mark of one that has one.
func resizeMessage(family uint16, seq uint32, index int, mark string, size int64) []byte {
	m := newMessage(family, nbdReconfigure, seq)
	m.u32(nbdAttrIndex, uint32(index))
	m.u64(nbdAttrSize, uint64(size))
	if mark != "" {
		m.str(nbdAttrBackend, mark)
	}
	return m.bytes()
}

// indexOf reads the device's number out of the answer to connect.
func indexOf(payload []byte) (int, error) {
	v, ok := findAttr(payload, nbdAttrIndex)
	if !ok || len(v) < 4 {
		return 0, fmt.Errorf("the driver did not say which device it used: %w", errNetlink)
	}
	return int(host.Uint32(v)), nil
}
