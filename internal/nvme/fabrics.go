package nvme

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"
	"unicode/utf8"
)

// initFabrics clears s and makes it a Fabrics command.
func (s *SQE) initFabrics(t FabricsType) {
	s.Init(OpFabrics, 0)
	s[4] = byte(t)
}

// Connect is the view of a Connect command, which makes a transport connection a
// queue of a controller.
//
//	  +-------------+-------------+-------------+-------------+
//	40| record format             | queue identifier          |
//	44| SQ size - 1               | attributes  | reserved    |
//	48| keep alive timeout, milliseconds                      |
//	  +-------------------------------------------------------+
type Connect struct{ *SQE }

// Connect views s as a Connect command.
func (s *SQE) Connect() Connect { return Connect{s} }

// NewConnect clears s and makes it a Connect command.
func (s *SQE) NewConnect() Connect {
	s.initFabrics(FabricsConnect)
	return Connect{s}
}

// RecordFormat returns the format of the command and its data; 0 is the only one.
func (c Connect) RecordFormat() uint16 { return binary.LittleEndian.Uint16(c.SQE[40:]) }

// QID returns the queue to be made: 0 the admin queue of a new controller.
func (c Connect) QID() uint16 { return binary.LittleEndian.Uint16(c.SQE[42:]) }

// SetQID sets the queue to be made.
func (c Connect) SetQID(id uint16) { binary.LittleEndian.PutUint16(c.SQE[42:], id) }

// SQSize returns the size of the submission queue less one, entries.
func (c Connect) SQSize() uint16 { return binary.LittleEndian.Uint16(c.SQE[44:]) }

// SetSQSize sets the size of the submission queue less one.
func (c Connect) SetSQSize(n uint16) { binary.LittleEndian.PutUint16(c.SQE[44:], n) }

// Attributes of a Connect command.
const (
	ConnectDisableFlowControl uint8 = 1 << 2 // the controller need not tell its SQ head
	ConnectQueueDeletion      uint8 = 1 << 3 // single I/O queues may be deleted
)

// Attributes returns the connect attributes.
func (c Connect) Attributes() uint8 { return c.SQE[46] }

// SetAttributes sets the connect attributes.
func (c Connect) SetAttributes(a uint8) { c.SQE[46] = a }

// KeepAlive returns the keep alive timeout; 0 is none. It counts on the admin
// queue only.
func (c Connect) KeepAlive() time.Duration { return time.Duration(c.CDW(12)) * time.Millisecond }

// SetKeepAlive sets the keep alive timeout, made up to whole milliseconds, as 0 of them is none.
func (c Connect) SetKeepAlive(d time.Duration) {
	ms := (d + time.Millisecond - 1) / time.Millisecond
	c.SetCDW(12, uint32(min(ms, math.MaxUint32)))
}

// KeepAliveSlack is how much later than the keep alive timeout a controller of ours looks whether
// its host has been silent. It looks twice in the worst case, which hosts reckon with that wait
// for its end.
const KeepAliveSlack = time.Second

// Byte offsets of Connect's fields, for [InvalidParameter].
const (
	ConnectAtRecordFormat  = 40
	ConnectAtQID           = 42
	ConnectAtSQSize        = 44
	ConnectAtAttributes    = 46
	ConnectAtKeepAlive     = 48
	ConnectDataAtHostID    = 0
	ConnectDataAtCntlID    = 16
	ConnectDataAtSubsystem = 256
	ConnectDataAtHost      = 512
)

// InvalidParameter is the result that goes with [ConnectInvalidParameters]: which
// byte of the command, or of its data, is wrong.
func InvalidParameter(inData bool, offset uint16) uint64 {
	v := uint64(offset)
	if inData {
		v |= 1 << 16
	}
	return v
}

// ConnectResult is the result of a Connect that succeeded.
type ConnectResult uint32

// Bits of a ConnectResult beside the controller identifier.
const (
	AuthRequired       ConnectResult = 1 << 17 // authenticate before anything else
	AuthSecureRequired ConnectResult = 1 << 18 // with secure channel concatenation
)

// CntlID returns the identifier of the controller.
func (r ConnectResult) CntlID() uint16 { return uint16(r) }

// ConnectDataLen is the length of Connect's data, bytes.
const ConnectDataLen = 1024

// Controller identifiers with a meaning of their own, in Connect's data.
const (
	CntlIDDynamic uint16 = 0xFFFF // make a controller
	CntlIDStatic  uint16 = 0xFFFE // any controller of a static model
	MaxCntlID     uint16 = 0xFFEF // the largest that names one
)

// HostID identifies a host, for reservations above all: the bytes of a UUID in
// the order of RFC 4122.
type HostID [16]byte

// String formats the identifier as a UUID.
func (h HostID) String() string {
	return fmt.Sprintf("%x-%x-%x-%x-%x", h[:4], h[4:6], h[6:8], h[8:10], h[10:])
}

// ConnectData says who connects to what.
//
//	    +---------------------------------+
//	   0| host identifier (16)            |
//	  16| controller identifier (2)       |
//	 256| subsystem NQN (256)             |
//	 512| host NQN (256)                  |
//	1024+---------------------------------+
type ConnectData struct {
	HostID    HostID
	CntlID    uint16 // CntlIDDynamic on the admin queue
	Subsystem string
	Host      string
}

// NameError says what is wrong with an NQN of Connect's data, and where it is.
type NameError struct {
	Offset uint16 // in Connect's data
	Err    error
}

func (e *NameError) Error() string { return e.Err.Error() }

// Unwrap returns the reason.
func (e *NameError) Unwrap() error { return e.Err }

// ParseConnectData reads Connect's data, [ConnectDataLen] bytes. A name that is
// none is a *NameError.
func ParseConnectData(b []byte) (ConnectData, error) {
	var d ConnectData
	if len(b) != ConnectDataLen {
		return d, fmt.Errorf("nvme: Connect with %d bytes of data, %d are asked for", len(b), ConnectDataLen)
	}
	d.HostID = HostID(b[:16])
	d.CntlID = binary.LittleEndian.Uint16(b[ConnectDataAtCntlID:])
	var err error
	if d.Subsystem, err = parseNQN(b[ConnectDataAtSubsystem:][:NQNField]); err != nil {
		return d, &NameError{ConnectDataAtSubsystem, fmt.Errorf("nvme: subsystem NQN: %w", err)}
	}
	if d.Host, err = parseNQN(b[ConnectDataAtHost:][:NQNField]); err != nil {
		return d, &NameError{ConnectDataAtHost, fmt.Errorf("nvme: host NQN: %w", err)}
	}
	return d, nil
}

// AppendTo adds the data to dst. Names are at most [MaxNQN] bytes long.
func (d *ConnectData) AppendTo(dst []byte) []byte {
	dst, b := grow(dst, ConnectDataLen)
	copy(b, d.HostID[:])
	binary.LittleEndian.PutUint16(b[ConnectDataAtCntlID:], d.CntlID)
	copy(b[ConnectDataAtSubsystem:][:MaxNQN], d.Subsystem)
	copy(b[ConnectDataAtHost:][:MaxNQN], d.Host)
	return dst
}

// grow adds n zero bytes to dst and returns them as well.
func grow(dst []byte, n int) (all, added []byte) {
	at := len(dst)
	dst = append(dst, make([]byte, n)...)
	return dst, dst[at:]
}

// NVMe Qualified Names.
const (
	NQNField = 256 // bytes that a name has in a structure
	MaxNQN   = 223 // bytes of the longest name

	// DiscoveryNQN is the name of every discovery subsystem.
	DiscoveryNQN = "nqn.2014-08.org.nvmexpress.discovery"
)

var (
	errNoName   = errors.New("empty")
	errLongName = fmt.Errorf("longer than %d bytes", MaxNQN)
	errUnended  = errors.New("not ended by a zero byte")
	errNoText   = errors.New("not UTF-8")
)

// CheckNQN reports what keeps s from being an NQN: 1 to 223 bytes of printable
// UTF-8 that begin with "nqn.", without white space.
func CheckNQN(s string) error {
	switch {
	case s == "":
		return errNoName
	case len(s) > MaxNQN:
		return errLongName
	case !strings.HasPrefix(s, "nqn."):
		return fmt.Errorf("%q does not begin with \"nqn.\"", s)
	}
	for i, r := range s {
		if r <= ' ' || r == 0x7F || r == 0xFFFD {
			return fmt.Errorf("%q has a character at %d that no name has", s, i)
		}
	}
	return nil
}

// parseNQN reads a name from its field. Hosts are free in what they call
// themselves, so it must be there, be text and end, no more: what is no text
// would be another name after an upgrade, and no label of a metric.
func parseNQN(field []byte) (string, error) {
	n := bytes.IndexByte(field, 0)
	switch {
	case n < 0:
		return "", errUnended
	case n == 0:
		return "", errNoName
	case n > MaxNQN:
		return "", errLongName
	case !utf8.Valid(field[:n]):
		return "", errNoText
	}
	return string(field[:n]), nil
}

// Property is the view of a Property Get or Property Set command, which reads or
// writes what is a register of a controller on a PCI bus.
//
//	  +-------------+-----------------------------------------+
//	40| size        | reserved                                |
//	44| offset                                                |
//	48| value (8 bytes), of Property Set                      |
//	  +-------------------------------------------------------+
type Property struct{ *SQE }

// Property views s as a Property Get or Property Set.
func (s *SQE) Property() Property { return Property{s} }

// NewPropertyGet clears s and makes it ask for a property.
func (s *SQE) NewPropertyGet(p PropertyOffset) {
	s.initFabrics(FabricsPropertyGet)
	s.SGL().SetBlock(SGLTransport, 0, 0)
	s.setProperty(p)
}

// NewPropertySet clears s and makes it set a property.
func (s *SQE) NewPropertySet(p PropertyOffset, value uint64) {
	s.initFabrics(FabricsPropertySet)
	s.SGL().SetBlock(SGLTransport, 0, 0)
	s.setProperty(p)
	s.put64(12, value)
}

func (s *SQE) setProperty(p PropertyOffset) {
	if p.Size() == 8 {
		s[40] = 1
	}
	s.SetCDW(11, uint32(p))
}

// Size returns how many bytes the host believes the property to have: 4 or 8; 0
// for a size that there is not.
func (c Property) Size() int {
	switch c.SQE[40] & 7 {
	case 0:
		return 4
	case 1:
		return 8
	}
	return 0
}

// Offset returns which property it is.
func (c Property) Offset() PropertyOffset { return PropertyOffset(c.CDW(11)) }

// Value returns the value to be set.
func (c Property) Value() uint64 { return c.u64(12) }

// Auth is the view of Authentication Send and Authentication Receive.
//
//	  +-------------+-------------+-------------+-------------+
//	40| reserved    | SPSP0       | SPSP1       | SECP        |
//	44| length of the data, or of the room for it             |
//	  +-------------------------------------------------------+
type Auth struct{ *SQE }

// Security protocol of DH-HMAC-CHAP.
const (
	AuthProtocol  = 0xE9
	AuthSpecific0 = 0x01
	AuthSpecific1 = 0x01
)

// Auth views s as Authentication Send or Receive.
func (s *SQE) Auth() Auth { return Auth{s} }

// NewAuth clears s and makes it an Authentication Send or Receive of n bytes.
func (s *SQE) NewAuth(t FabricsType, n uint32) {
	s.initFabrics(t)
	s[41], s[42], s[43] = AuthSpecific0, AuthSpecific1, AuthProtocol
	s.SetCDW(11, n)
}

// Valid reports whether the security protocol is NVMe's own.
func (c Auth) Valid() bool {
	return c.SQE[41] == AuthSpecific0 && c.SQE[42] == AuthSpecific1 && c.SQE[43] == AuthProtocol
}

// Length returns the length of the data sent, or of the room for the answer.
func (c Auth) Length() uint32 { return c.CDW(11) }
