package packet

import "encoding/binary"

// Lengths of the headers, in bytes.
const (
	BTHLen          = 12
	DETHLen         = 8
	RETHLen         = 16
	AtomicETHLen    = 28
	AETHLen         = 4
	AtomicAckETHLen = 8
	ImmLen          = 4
	IETHLen         = 4
	ICRCLen         = 4
	cnpLen          = 16

	// MaxHeader is the longest sequence of headers that any opcode has.
	MaxHeader = BTHLen + AtomicETHLen
	// MaxTrailer is the longest pad with the ICRC behind it.
	MaxTrailer = 3 + ICRCLen
)

// QPNMask holds the bits that a queue pair number has.
const QPNMask = 1<<24 - 1

// DefaultPKey is the partition that everybody is a full member of.
const DefaultPKey = 0xffff

// BTH is the base transport header (IBA vol. 1 §9.2).
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+---------------+-+-+---+-------+-------------------------------+
//	|    OpCode     |S|M|Pad| TVer  |        Partition Key          |   0
//	+-+-+-----------+-+-+---+-------+-------------------------------+
//	|F|B| reserved  |           Destination Queue Pair              |   4
//	+-+-+-----------+-----------------------------------------------+
//	|A|  reserved   |            Packet Sequence Number             |   8
//	+-+-------------+-----------------------------------------------+
//
// Pad is computed on the way out and taken off the payload on the way in; TVer is 0.
type BTH struct {
	Op        Opcode
	Solicited bool   // S: the receiver's completion is a solicited event
	Migrated  bool   // M: path migration; without a meaning here, hardware sets it
	PKey      uint16 // DefaultPKey
	FECN      bool   // F, B: congestion was seen on this way, on the other one; not
	BECN      bool   // covered by the ICRC
	QPN       uint32 // of the receiver; 24 bits
	AckReq    bool   // A
	PSN       PSN
}

const (
	bitSolicited = 1 << 7
	bitMigrated  = 1 << 6
	padShift     = 4
	bitFECN      = 1 << 7
	bitBECN      = 1 << 6
	bitAckReq    = 1 << 31
)

func (h *BTH) put(b []byte, pad int) {
	_ = b[BTHLen-1]
	b[0] = byte(h.Op)
	b[1] = byte(pad) << padShift
	if h.Solicited {
		b[1] |= bitSolicited
	}
	if h.Migrated {
		b[1] |= bitMigrated
	}
	binary.BigEndian.PutUint16(b[2:], h.PKey)
	binary.BigEndian.PutUint32(b[4:], h.QPN&QPNMask)
	if h.FECN {
		b[4] |= bitFECN
	}
	if h.BECN {
		b[4] |= bitBECN
	}
	last := uint32(h.PSN & PSNMask)
	if h.AckReq {
		last |= bitAckReq
	}
	binary.BigEndian.PutUint32(b[8:], last)
}

// get reads the header and returns the pad's length and TVer.
func (h *BTH) get(b []byte) (pad int, version byte) {
	_ = b[BTHLen-1]
	h.Op = Opcode(b[0])
	h.Solicited, h.Migrated = b[1]&bitSolicited != 0, b[1]&bitMigrated != 0
	h.PKey = binary.BigEndian.Uint16(b[2:])
	h.FECN, h.BECN = b[4]&bitFECN != 0, b[4]&bitBECN != 0
	h.QPN = binary.BigEndian.Uint32(b[4:]) & QPNMask
	last := binary.BigEndian.Uint32(b[8:])
	h.AckReq, h.PSN = last&bitAckReq != 0, PSN(last&PSNMask)
	return int(b[1]>>padShift) & 3, b[1] & 15
}
