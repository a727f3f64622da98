package mad

import "encoding/binary"

// PrivateREP is the private data of a REP, in bytes.
const PrivateREP = 196

// REP accepts a connection (IBA vol. 1 §12.6.8).
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+---------------------------------------------------------------+
//	|                    Local Communication ID                     |   0
//	+---------------------------------------------------------------+
//	|                    Remote Communication ID                    |   4
//	+---------------------------------------------------------------+
//	|                          Local Q_Key                          |   8
//	+-----------------------------------------------+---------------+
//	|                   Local QPN                   |  Vendor ID H  |  12
//	+-----------------------------------------------+---------------+
//	|                Local EE Context               |  Vendor ID M  |  16
//	+-----------------------------------------------+---------------+
//	|                  Starting PSN                 |  Vendor ID L  |  20
//	+---------------+---------------+---------+---+-+-----+-+-------+
//	|Responder Resrc|InitiatorDepth |AckDelay |Fov|F| RNR |Q|reservd|  24
//	+---------------+---------------+---------+---+-+-----+-+-------+
//	|                                                               |  28
//	+                         Local CA GUID                         +
//	|                                                               |
//	+---------------------------------------------------------------+
//
// Fov: failover accepted; F: end-to-end flow control; Q: shared receive queue.
type REP struct {
	LocalCommID        uint32
	RemoteCommID       uint32
	LocalQKey          uint32
	LocalQPN           uint32 // 24 bits
	StartingPSN        uint32 // 24 bits; the receiver's first request has it
	VendorID           uint32 // 24 bits
	ResponderResources uint8
	InitiatorDepth     uint8
	AckDelay           uint8 // 5 bits: the sender acknowledges within 4.096 µs·2^n
	Failover           uint8 // 2 bits
	FlowControl        bool
	RNRRetry           uint8 // 3 bits; 7 for ever
	SRQ                bool
	LocalCAGUID        uint64
	Private            [PrivateREP]byte
}

// Attr is AttrREP.
func (*REP) Attr() Attr { return AttrREP }

func (m *REP) put(b *[dataLen]byte) {
	binary.BigEndian.PutUint32(b[0:], m.LocalCommID)
	binary.BigEndian.PutUint32(b[4:], m.RemoteCommID)
	binary.BigEndian.PutUint32(b[8:], m.LocalQKey)
	put24(b[12:], m.LocalQPN)
	put24(b[20:], m.StartingPSN)
	b[15], b[19], b[23] = byte(m.VendorID>>16), byte(m.VendorID>>8), byte(m.VendorID)
	b[24], b[25] = m.ResponderResources, m.InitiatorDepth
	b[26] = m.AckDelay<<3 | m.Failover&3<<1 | bit(m.FlowControl, 0)
	b[27] = m.RNRRetry<<5 | bit(m.SRQ, 4)
	binary.BigEndian.PutUint64(b[28:], m.LocalCAGUID)
	copy(b[36:], m.Private[:])
}

func (m *REP) get(b *[dataLen]byte) {
	*m = REP{
		LocalCommID:        binary.BigEndian.Uint32(b[0:]),
		RemoteCommID:       binary.BigEndian.Uint32(b[4:]),
		LocalQKey:          binary.BigEndian.Uint32(b[8:]),
		LocalQPN:           get24(b[12:]),
		StartingPSN:        get24(b[20:]),
		VendorID:           uint32(b[15])<<16 | uint32(b[19])<<8 | uint32(b[23]),
		ResponderResources: b[24],
		InitiatorDepth:     b[25],
		AckDelay:           b[26] >> 3,
		Failover:           b[26] >> 1 & 3,
		FlowControl:        b[26]&1 != 0,
		RNRRetry:           b[27] >> 5,
		SRQ:                b[27]&0x10 != 0,
		LocalCAGUID:        binary.BigEndian.Uint64(b[28:]),
		Private:            [PrivateREP]byte(b[36:]),
	}
}
