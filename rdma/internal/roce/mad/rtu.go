package mad

import "encoding/binary"

// PrivateRTU is the private data of an RTU, in bytes.
const PrivateRTU = 224

// RTU says that the sender of the REQ has had the REP (IBA vol. 1 §12.6.9).
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+---------------------------------------------------------------+
//	|                    Local Communication ID                     |   0
//	+---------------------------------------------------------------+
//	|                    Remote Communication ID                    |   4
//	+---------------------------------------------------------------+
type RTU struct {
	LocalCommID  uint32
	RemoteCommID uint32
	Private      [PrivateRTU]byte
}

// Attr is AttrRTU.
func (*RTU) Attr() Attr { return AttrRTU }

func (m *RTU) put(b *[dataLen]byte) {
	binary.BigEndian.PutUint32(b[0:], m.LocalCommID)
	binary.BigEndian.PutUint32(b[4:], m.RemoteCommID)
	copy(b[8:], m.Private[:])
}

func (m *RTU) get(b *[dataLen]byte) {
	*m = RTU{binary.BigEndian.Uint32(b[0:]), binary.BigEndian.Uint32(b[4:]), [PrivateRTU]byte(b[8:])}
}

// PrivateMRA is the private data of an MRA, in bytes.
const PrivateMRA = 222

// MRA says that a message has come and that its answer takes longer (IBA vol. 1 §12.6.6).
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+---------------------------------------------------------------+
//	|                    Local Communication ID                     |   0
//	+---------------------------------------------------------------+
//	|                    Remote Communication ID                    |   4
//	+---+-----------+---------+-----+-------------------------------+
//	|Whi| reserved  | Timeout |resvd|                                   8
//	+---+-----------+---------+-----+
type MRA struct {
	LocalCommID    uint32
	RemoteCommID   uint32
	Which          Which
	ServiceTimeout uint8 // 5 bits: the answer comes within 4.096 µs·2^n from now
	Private        [PrivateMRA]byte
}

// Attr is AttrMRA.
func (*MRA) Attr() Attr { return AttrMRA }

func (m *MRA) put(b *[dataLen]byte) {
	binary.BigEndian.PutUint32(b[0:], m.LocalCommID)
	binary.BigEndian.PutUint32(b[4:], m.RemoteCommID)
	b[8], b[9] = byte(m.Which)<<6, m.ServiceTimeout<<3
	copy(b[10:], m.Private[:])
}

func (m *MRA) get(b *[dataLen]byte) {
	*m = MRA{binary.BigEndian.Uint32(b[0:]), binary.BigEndian.Uint32(b[4:]), Which(b[8] >> 6), b[9] >> 3, [PrivateMRA]byte(b[10:])}
}
