package nvme

import (
	"encoding/binary"
	"fmt"
)

// IdentifyLen is the length of what every Identify command returns, bytes.
const IdentifyLen = 4096

// CNS says which structure an Identify command asks for.
type CNS uint8

// Structures of Identify.
const (
	CNSNamespace            CNS = 0x00
	CNSController           CNS = 0x01
	CNSActiveNamespaces     CNS = 0x02
	CNSDescriptors          CNS = 0x03 // namespace identification descriptors
	CNSCommandSetNamespace  CNS = 0x05
	CNSCommandSetController CNS = 0x06
	CNSCommandSetActive     CNS = 0x07 // active namespaces of one command set
	CNSIndependentNamespace CNS = 0x08
	CNSAllocatedNamespaces  CNS = 0x10
	CNSAllocatedNamespace   CNS = 0x11
	CNSAttachedControllers  CNS = 0x12
	CNSControllers          CNS = 0x13
	CNSCommandSets          CNS = 0x1C
)

// Identify is the view of an Identify command.
//
//	  +-------------+-------------+---------------------------+
//	40| CNS         | reserved    | controller identifier     |
//	44| CNS specific identifier   | reserved    | command set |
//	  +-------------------------------------------------------+
type Identify struct{ *SQE }

// Identify views s as an Identify command.
func (s *SQE) Identify() Identify { return Identify{s} }

// NewIdentify clears s and makes it ask for a structure.
func (s *SQE) NewIdentify(c CNS, nsid uint32) Identify {
	s.Init(AdminIdentify, nsid)
	s[40] = byte(c)
	return Identify{s}
}

// CNS returns which structure is asked for.
func (c Identify) CNS() CNS { return CNS(c.SQE[40]) }

// CntlID returns the controller identifier, of the structures that take one.
func (c Identify) CntlID() uint16 { return binary.LittleEndian.Uint16(c.SQE[42:]) }

// CommandSet returns the I/O command set, of the structures that take one.
func (c Identify) CommandSet() uint8 { return c.SQE[47] }

// CommandSet numbers.
const CSINVM = 0

// Namespace identifiers with a meaning of their own.
const (
	NSIDAll     uint32 = 0xFFFFFFFF // all namespaces
	MaxActive          = 1024       // identifiers in one list
	maxListNSID uint32 = 0xFFFFFFFD // a list cannot begin behind it
)

// AppendNSIDs adds a list of namespace identifiers, ascending, at most
// [MaxActive] of those that are larger than after.
func AppendNSIDs(dst []byte, ids []uint32, after uint32) []byte {
	dst, b := grow(dst, IdentifyLen)
	at := 0
	for _, id := range ids {
		if id > after && at < MaxActive {
			binary.LittleEndian.PutUint32(b[4*at:], id)
			at++
		}
	}
	return dst
}

// ParseNSIDs reads a list of namespace identifiers, which ends at the first zero
// and must ascend.
func ParseNSIDs(b []byte) ([]uint32, error) {
	var ids []uint32
	last := uint32(0)
	for ; len(b) >= 4; b = b[4:] {
		id := binary.LittleEndian.Uint32(b)
		if id == 0 {
			break
		}
		if id <= last || id > maxListNSID+1 {
			return nil, fmt.Errorf("nvme: namespace %d follows %d in a list that ascends", id, last)
		}
		ids, last = append(ids, id), id
	}
	return ids, nil
}

// AppendCntlIDs adds a list of controller identifiers, ascending: those that are
// not less than from.
//
//	0| number of identifiers (2)
//	2| identifiers (2 bytes each, 2047 at most)
func AppendCntlIDs(dst []byte, ids []uint16, from uint16) []byte {
	const most = 2047
	dst, b := grow(dst, IdentifyLen)
	n := 0
	for _, id := range ids {
		if id >= from && n < most {
			n++
			binary.LittleEndian.PutUint16(b[2*n:], id)
		}
	}
	binary.LittleEndian.PutUint16(b, uint16(n))
	return dst
}

// ID types of a namespace identification descriptor.
const (
	nidEUI64 = 1
	nidNGUID = 2
	nidUUID  = 3
	nidCSI   = 4
)

// Identifiers are the names of a namespace, each zero if there is none.
type Identifiers struct {
	EUI64 [8]byte
	NGUID [16]byte
	UUID  [16]byte
	CSI   uint8 // I/O command set
}

// AppendTo adds the list of namespace identification descriptors.
//
//	+---------+---------+-------------------+----------------------+
//	| type 1  | length 1| reserved 2        | identifier           |
//	+---------+---------+-------------------+----------------------+
func (d *Identifiers) AppendTo(dst []byte) []byte {
	at := len(dst)
	add := func(kind byte, id []byte) {
		dst = append(dst, kind, byte(len(id)), 0, 0)
		dst = append(dst, id...)
	}
	if d.EUI64 != [8]byte{} {
		add(nidEUI64, d.EUI64[:])
	}
	if d.NGUID != [16]byte{} {
		add(nidNGUID, d.NGUID[:])
	}
	if d.UUID != [16]byte{} {
		add(nidUUID, d.UUID[:])
	}
	add(nidCSI, []byte{d.CSI})
	return append(dst, make([]byte, IdentifyLen-(len(dst)-at))...)
}

// ParseIdentifiers reads the list of namespace identification descriptors. Types
// that are not known are passed over.
func ParseIdentifiers(b []byte) (Identifiers, error) {
	var d Identifiers
	for len(b) >= 4 {
		kind, n := b[0], int(b[1])
		if n == 0 {
			break
		}
		b = b[4:]
		if n > len(b) {
			return d, fmt.Errorf("nvme: namespace identifier of type %d says %d bytes, %d are left", kind, n, len(b))
		}
		id := b[:n]
		b = b[n:]
		switch {
		case kind == nidEUI64 && n == 8:
			copy(d.EUI64[:], id)
		case kind == nidNGUID && n == 16:
			copy(d.NGUID[:], id)
		case kind == nidUUID && n == 16:
			copy(d.UUID[:], id)
		case kind == nidCSI && n == 1:
			d.CSI = id[0]
		case kind >= nidEUI64 && kind <= nidCSI:
			return d, fmt.Errorf("nvme: namespace identifier of type %d has %d bytes", kind, n)
		}
	}
	return d, nil
}

// CommandSetLimits is what Identify tells of the NVM command set's limits beside
// those of every command (CNS 06h). Each is 0 for none.
//
//	0| Verify, log2 of pages      2| Write Uncorrectable, log2 of pages
//	1| Write Zeroes, log2         3| Dataset Management: ranges
//	4| blocks in a range (4)      8| blocks in a command (8)
type CommandSetLimits struct {
	VerifySize        uint8  // log2 of the longest Verify, in pages
	WriteZeroesSize   uint8  // log2 of the longest Write Zeroes, in pages
	UncorrectableSize uint8  // log2 of the longest Write Uncorrectable, in pages
	DSMRanges         uint8  // ranges of a Dataset Management command
	DSMRangeBlocks    uint32 // blocks of one of them
	DSMBlocks         uint64 // blocks of all of them
}

// AppendTo adds the structure.
func (l *CommandSetLimits) AppendTo(dst []byte) []byte {
	dst, b := grow(dst, IdentifyLen)
	b[0], b[1], b[2], b[3] = l.VerifySize, l.WriteZeroesSize, l.UncorrectableSize, l.DSMRanges
	binary.LittleEndian.PutUint32(b[4:], l.DSMRangeBlocks)
	binary.LittleEndian.PutUint64(b[8:], l.DSMBlocks)
	return dst
}

// ParseCommandSetLimits reads the structure.
func ParseCommandSetLimits(b []byte) (CommandSetLimits, error) {
	if len(b) < 16 {
		return CommandSetLimits{}, fmt.Errorf("nvme: limits of the command set in %d bytes", len(b))
	}
	return CommandSetLimits{
		VerifySize: b[0], WriteZeroesSize: b[1], UncorrectableSize: b[2], DSMRanges: b[3],
		DSMRangeBlocks: binary.LittleEndian.Uint32(b[4:]), DSMBlocks: binary.LittleEndian.Uint64(b[8:]),
	}, nil
}
