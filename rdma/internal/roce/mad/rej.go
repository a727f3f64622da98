package mad

import "encoding/binary"

// PrivateREJ is the private data of a REJ, in bytes, and ARILen its additional
// rejection information.
const (
	PrivateREJ = 148
	ARILen     = 72
)

// REJ refuses a connection (IBA vol. 1 §12.6.7).
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+---------------------------------------------------------------+
//	|                    Local Communication ID                     |   0
//	+---------------------------------------------------------------+
//	|                    Remote Communication ID                    |   4
//	+---+-----------+-------------+-+-------------------------------+
//	|Whi| reserved  | InfoLength  |r|            Reason             |   8
//	+---+-----------+-------------+-+-------------------------------+
//	|       Additional Rejection Information (ARI), 72 bytes        ~  12
//	+---------------------------------------------------------------+
type REJ struct {
	LocalCommID  uint32 // 0 when the sender has none
	RemoteCommID uint32 // of the refused message's sender
	Which        Which
	InfoLength   uint8 // 7 bits: bytes of ARI in use; nobody has to believe it
	Reason       Reason
	ARI          [ARILen]byte
	Private      [PrivateREJ]byte
}

// Attr is AttrREJ.
func (*REJ) Attr() Attr { return AttrREJ }

func (m *REJ) put(b *[dataLen]byte) {
	binary.BigEndian.PutUint32(b[0:], m.LocalCommID)
	binary.BigEndian.PutUint32(b[4:], m.RemoteCommID)
	b[8], b[9] = byte(m.Which)<<6, m.InfoLength<<1
	binary.BigEndian.PutUint16(b[10:], uint16(m.Reason))
	copy(b[12:], m.ARI[:])
	copy(b[84:], m.Private[:])
}

func (m *REJ) get(b *[dataLen]byte) {
	*m = REJ{
		LocalCommID:  binary.BigEndian.Uint32(b[0:]),
		RemoteCommID: binary.BigEndian.Uint32(b[4:]),
		Which:        Which(b[8] >> 6),
		InfoLength:   b[9] >> 1,
		Reason:       Reason(binary.BigEndian.Uint16(b[10:])),
		ARI:          [ARILen]byte(b[12:]),
		Private:      [PrivateREJ]byte(b[84:]),
	}
}
