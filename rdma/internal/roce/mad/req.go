package mad

import "encoding/binary"

// PrivateREQ is the private data of a REQ, in bytes. rdma_cm takes IPHeaderLen of them.
const PrivateREQ = 92

// Service is the transport service that a REQ asks for.
type Service uint8

// Transport services.
const (
	ServiceRC  Service = 0
	ServiceUC  Service = 1
	ServiceRD  Service = 2
	ServiceXRC Service = 3 // with an extended type of 1
)

// REQ asks for a connection (IBA vol. 1 §12.6.5).
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+---------------------------------------------------------------+
//	|                    Local Communication ID                     |   0
//	+---------------+-----------------------------------------------+
//	|   reserved    |               Vendor ID (ECE)                 |   4
//	+---------------+-----------------------------------------------+
//	|                                                               |   8
//	+                           Service ID                          +
//	|                                                               |
//	+---------------------------------------------------------------+
//	|                                                               |  16
//	+                         Local CA GUID                         +
//	|                                                               |
//	+---------------------------------------------------------------+
//	|                           reserved                            |  24
//	+---------------------------------------------------------------+
//	|                          Local Q_Key                          |  28
//	+-----------------------------------------------+---------------+
//	|                   Local QPN                   |Responder Resrc|  32
//	+-----------------------------------------------+---------------+
//	|                   Local EECN                  |InitiatorDepth |  36
//	+-----------------------------------------------+---------+---+-+
//	|                   Remote EECN                 | RemoteTO| S |F|  40
//	+-----------------------------------------------+---------+---+-+
//	|                  Starting PSN                 | LocalTO | Rty |  44
//	+-------------------------------+-------+-+-----+-------+-+-----+
//	|             P_Key             |  MTU  |R| RNR |CMRetry|Q| Ext |  48
//	+-------------------------------+-------+-+-----+-------+-+-----+
//	|                  primary path, 44 bytes: Path                 ~  52
//	+---------------------------------------------------------------+
//	|                 alternate path, 44 bytes: Path                ~  96
//	+---------------------------------------------------------------+
//
// S: transport service; F: end-to-end flow control; R: RDC exists (not ours, zero);
// Q: shared receive queue; TO: CM response timeouts; Rty: retry count.
type REQ struct {
	LocalCommID        uint32
	VendorID           uint32 // 24 bits; 0 without enhanced connection establishment
	ServiceID          ServiceID
	LocalCAGUID        uint64
	LocalQKey          uint32
	LocalQPN           uint32 // 24 bits
	ResponderResources uint8  // Reads and atomics that the sender serves at once
	InitiatorDepth     uint8  // … that it wants to have outstanding
	RemoteCMTimeout    uint8  // 4.096 µs·2^n within which the receiver answers
	Service            Service
	FlowControl        bool
	StartingPSN        uint32 // 24 bits; the receiver's first request has it
	LocalCMTimeout     uint8  // 4.096 µs·2^n within which the sender answers
	RetryCount         uint8  // 3 bits
	PKey               uint16
	PathMTU            uint8 // 4 bits: 1 to 5 for 256 to 4096 bytes
	RNRRetry           uint8 // 3 bits; 7 for ever
	MaxCMRetries       uint8 // 4 bits
	SRQ                bool
	ExtendedService    uint8 // 3 bits
	Primary, Alternate Path
	Private            [PrivateREQ]byte
}

// Attr is AttrREQ.
func (*REQ) Attr() Attr { return AttrREQ }

func (m *REQ) put(b *[dataLen]byte) {
	binary.BigEndian.PutUint32(b[0:], m.LocalCommID)
	put24(b[5:], m.VendorID)
	binary.BigEndian.PutUint64(b[8:], uint64(m.ServiceID))
	binary.BigEndian.PutUint64(b[16:], m.LocalCAGUID)
	binary.BigEndian.PutUint32(b[28:], m.LocalQKey)
	put24(b[32:], m.LocalQPN)
	b[35] = m.ResponderResources
	b[39] = m.InitiatorDepth
	b[43] = m.RemoteCMTimeout<<3 | byte(m.Service&3)<<1 | bit(m.FlowControl, 0)
	put24(b[44:], m.StartingPSN)
	b[47] = m.LocalCMTimeout<<3 | m.RetryCount&7
	binary.BigEndian.PutUint16(b[48:], m.PKey)
	b[50] = m.PathMTU<<4 | m.RNRRetry&7
	b[51] = m.MaxCMRetries<<4 | bit(m.SRQ, 3) | m.ExtendedService&7
	m.Primary.put((*[pathLen]byte)(b[52:]))
	m.Alternate.put((*[pathLen]byte)(b[96:]))
	copy(b[140:], m.Private[:])
}

// get decodes a request for a connection.
func (m *REQ) get(b *[dataLen]byte) {
	*m = REQ{
		LocalCommID:        binary.BigEndian.Uint32(b[0:]),
		VendorID:           get24(b[5:]),
		ServiceID:          ServiceID(binary.BigEndian.Uint64(b[8:])),
		LocalCAGUID:        binary.BigEndian.Uint64(b[16:]),
		LocalQKey:          binary.BigEndian.Uint32(b[28:]),
		LocalQPN:           get24(b[32:]),
		ResponderResources: b[35],
		InitiatorDepth:     b[39],
		RemoteCMTimeout:    b[43] >> 3,
		Service:            Service(b[43] >> 1 & 3),
		FlowControl:        b[43]&1 != 0,
		StartingPSN:        get24(b[44:]),
		LocalCMTimeout:     b[47] >> 3,
		RetryCount:         b[47] & 7,
		PKey:               binary.BigEndian.Uint16(b[48:]),
		PathMTU:            b[50] >> 4,
		RNRRetry:           b[50] & 7,
		MaxCMRetries:       b[51] >> 4,
		SRQ:                b[51]&8 != 0,
		ExtendedService:    b[51] & 7,
		Private:            [PrivateREQ]byte(b[140:]),
	}
	m.Primary.get((*[pathLen]byte)(b[52:]))
	m.Alternate.get((*[pathLen]byte)(b[96:]))
}

const pathLen = 44

// Path is how packets of a connection are addressed, as the sender of a REQ sees it.
// The GIDs of RoCE are IP addresses; see GID.
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-------------------------------+-------------------------------+
//	|        Local Port LID         |        Remote Port LID        |   0
//	+-------------------------------+-------------------------------+
//	|                    Local Port GID, 16 bytes                   ~   4
//	+---------------------------------------------------------------+
//	|                   Remote Port GID, 16 bytes                   ~  20
//	+---------------------------------------+-----------+-----------+
//	|              Flow Label               | reserved  |PacketRate |  36
//	+---------------+---------------+-------+-+-----+---+-----+-----+
//	| Traffic Class |   Hop Limit   |  SL   |L|resvd| AckTO   |resvd|  40
//	+---------------+---------------+-------+-+-----+---------+-----+
//
// L: subnet local. AckTO: local ACK timeout.
type Path struct {
	LocalLID, RemoteLID uint16
	LocalGID, RemoteGID [16]byte
	FlowLabel           uint32 // 20 bits
	PacketRate          uint8  // 6 bits
	TrafficClass        uint8
	HopLimit            uint8
	SL                  uint8 // 4 bits
	SubnetLocal         bool
	AckTimeout          uint8 // 5 bits: 4.096 µs·2^n, 0 for ever
}

func (p *Path) put(b *[pathLen]byte) {
	binary.BigEndian.PutUint16(b[0:], p.LocalLID)
	binary.BigEndian.PutUint16(b[2:], p.RemoteLID)
	copy(b[4:], p.LocalGID[:])
	copy(b[20:], p.RemoteGID[:])
	binary.BigEndian.PutUint32(b[36:], p.FlowLabel<<12|uint32(p.PacketRate&0x3f))
	b[40], b[41] = p.TrafficClass, p.HopLimit
	b[42] = p.SL<<4 | bit(p.SubnetLocal, 3)
	b[43] = p.AckTimeout << 3
}

func (p *Path) get(b *[pathLen]byte) {
	*p = Path{
		LocalLID:     binary.BigEndian.Uint16(b[0:]),
		RemoteLID:    binary.BigEndian.Uint16(b[2:]),
		LocalGID:     [16]byte(b[4:]),
		RemoteGID:    [16]byte(b[20:]),
		FlowLabel:    binary.BigEndian.Uint32(b[36:]) >> 12,
		PacketRate:   b[39] & 0x3f,
		TrafficClass: b[40],
		HopLimit:     b[41],
		SL:           b[42] >> 4,
		SubnetLocal:  b[42]&8 != 0,
		AckTimeout:   b[43] >> 3,
	}
}
