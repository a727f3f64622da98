package mad

import "encoding/binary"

// Private data of a DREQ and of a DREP, in bytes.
const (
	PrivateDREQ = 220
	PrivateDREP = 224
)

// DREQ ends a connection (IBA vol. 1 §12.6.10).
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+---------------------------------------------------------------+
//	|                    Local Communication ID                     |   0
//	+---------------------------------------------------------------+
//	|                    Remote Communication ID                    |   4
//	+-----------------------------------------------+---------------+
//	|                  Remote QPN/EECN              |   reserved    |   8
//	+-----------------------------------------------+---------------+
type DREQ struct {
	LocalCommID  uint32
	RemoteCommID uint32
	RemoteQPN    uint32 // 24 bits: the receiver's
	Private      [PrivateDREQ]byte
}

// Attr is AttrDREQ.
func (*DREQ) Attr() Attr { return AttrDREQ }

func (m *DREQ) put(b *[dataLen]byte) {
	binary.BigEndian.PutUint32(b[0:], m.LocalCommID)
	binary.BigEndian.PutUint32(b[4:], m.RemoteCommID)
	put24(b[8:], m.RemoteQPN)
	copy(b[12:], m.Private[:])
}

func (m *DREQ) get(b *[dataLen]byte) {
	*m = DREQ{binary.BigEndian.Uint32(b[0:]), binary.BigEndian.Uint32(b[4:]), get24(b[8:]), [PrivateDREQ]byte(b[12:])}
}

// DREP answers a DREQ (IBA vol. 1 §12.6.11).
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+---------------------------------------------------------------+
//	|                    Local Communication ID                     |   0
//	+---------------------------------------------------------------+
//	|                    Remote Communication ID                    |   4
//	+---------------------------------------------------------------+
type DREP struct {
	LocalCommID  uint32
	RemoteCommID uint32
	Private      [PrivateDREP]byte
}

// Attr is AttrDREP.
func (*DREP) Attr() Attr { return AttrDREP }

func (m *DREP) put(b *[dataLen]byte) {
	binary.BigEndian.PutUint32(b[0:], m.LocalCommID)
	binary.BigEndian.PutUint32(b[4:], m.RemoteCommID)
	copy(b[8:], m.Private[:])
}

func (m *DREP) get(b *[dataLen]byte) {
	*m = DREP{binary.BigEndian.Uint32(b[0:]), binary.BigEndian.Uint32(b[4:]), [PrivateDREP]byte(b[8:])}
}
