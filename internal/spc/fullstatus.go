package spc

import "encoding/binary"

// FullStatus is one registrant of READ FULL STATUS (SPC-4 §6.14.5):
//
//	+--+-------------------------------------------+
//	| 0| reservation key (8)                       |
//	|12| ALL_TG_PT(02h) R_HOLDER(01h)              |
//	|13| scope (4 bits) | type (4 bits)            |
//	|18| relative target port (2)                  |
//	|20| length (4), TransportID                   |
//	+--+-------------------------------------------+
type FullStatus struct {
	Key          uint64
	AllPorts     bool
	Holder       bool
	Type         PRType // of the reservation that it holds
	RelativePort uint16
	Port         string // of the initiator; "": of a transport other than iSCSI
}

const fullStatusLen = 24 // without the TransportID

// Append adds the descriptor, of an initiator port that TransportID can name.
func (f *FullStatus) Append(dst []byte) []byte {
	at := len(dst)
	dst = append(dst, make([]byte, fullStatusLen)...)
	b := dst[at:]
	binary.BigEndian.PutUint64(b, f.Key)
	b[12] = bit(f.AllPorts, 2) | bit(f.Holder, 1)
	b[13] = byte(f.Type)
	binary.BigEndian.PutUint16(b[18:], f.RelativePort)
	dst = AppendTransportID(dst, f.Port)
	binary.BigEndian.PutUint32(dst[at+20:], uint32(len(dst)-at-fullStatusLen))
	return dst
}

// ParseFullStatus decodes READ FULL STATUS data: generation (4), length (4), descriptors.
// What was cut short tells those that are whole.
func ParseFullStatus(b []byte) (list []FullStatus, err error) {
	if len(b) < 8 {
		return nil, ErrListLength
	}
	n := binary.BigEndian.Uint32(b[4:])
	b = b[8:]
	if uint64(n) < uint64(len(b)) {
		b = b[:n]
	}
	for len(b) >= fullStatusLen {
		f := FullStatus{
			Key: binary.BigEndian.Uint64(b), AllPorts: b[12]&2 != 0, Holder: b[12]&1 != 0, Type: PRType(b[13] & 0xF),
			RelativePort: binary.BigEndian.Uint16(b[18:]),
		}
		id := binary.BigEndian.Uint32(b[20:])
		if b = b[fullStatusLen:]; uint64(id) > uint64(len(b)) {
			return list, nil
		}
		f.Port, _, _ = ParseTransportID(b[:id])
		list, b = append(list, f), b[id:]
	}
	return list, nil
}
