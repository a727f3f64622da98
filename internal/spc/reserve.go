package spc

import (
	"encoding/binary"
	"fmt"
)

// PRType is the type of a persistent reservation (SPC-4 §6.14.3.4).
type PRType byte

// Persistent reservation types.
const (
	PRNone                        PRType = 0
	PRWriteExclusive              PRType = 1
	PRExclusiveAccess             PRType = 3
	PRWriteExclusiveRegistrants   PRType = 5
	PRExclusiveAccessRegistrants  PRType = 6
	PRWriteExclusiveAllRegistrant PRType = 7
	PRExclusiveAccessAllRegistr   PRType = 8
)

// Valid reports whether t is a type that a RESERVE may ask for.
func (t PRType) Valid() bool {
	switch t {
	case 1, 3, 5, 6, 7, 8:
		return true
	}
	return false
}

// AllRegistrants reports whether every registrant holds such a reservation.
func (t PRType) AllRegistrants() bool { return t == 7 || t == 8 }

// RegistrantsOnly reports whether every registrant has the holder's access.
func (t PRType) RegistrantsOnly() bool { return t >= 5 && t <= 8 }

// WriteExclusive reports whether others may read.
func (t PRType) WriteExclusive() bool { return t == 1 || t == 5 || t == 7 }

// String returns the name of the type.
func (t PRType) String() string {
	switch t {
	case 0:
		return "none"
	case 1:
		return "Write Exclusive"
	case 3:
		return "Exclusive Access"
	case 5:
		return "Write Exclusive - Registrants Only"
	case 6:
		return "Exclusive Access - Registrants Only"
	case 7:
		return "Write Exclusive - All Registrants"
	case 8:
		return "Exclusive Access - All Registrants"
	}
	return fmt.Sprintf("reservation type %Xh", byte(t))
}

// PersistOut is the basic parameter list of PERSISTENT RESERVE OUT (SPC-4 §6.15.3):
//
//	+--+------------------------------------------------+
//	| 0| reservation key (8)                            |
//	| 8| service action reservation key (8)             |
//	|16| obsolete (4)                                   |
//	|20| SPEC_I_PT(08h) ALL_TG_PT(04h) APTPL(01h)       |
//	|21| reserved (3)                                   |
//	|24| TransportID list, with SPEC_I_PT               |
//	+--+------------------------------------------------+
type PersistOut struct {
	Key, ActionKey uint64
	SpecIPT        bool
	AllPorts       bool
	APTPL          bool
}

// PersistOutLen is the length of the list without TransportIDs.
const PersistOutLen = 24

// Append adds the basic parameter list.
func (p *PersistOut) Append(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint64(dst, p.Key)
	dst = binary.BigEndian.AppendUint64(dst, p.ActionKey)
	return append(dst, 0, 0, 0, 0, bit(p.SpecIPT, 8)|bit(p.AllPorts, 4)|bit(p.APTPL, 1), 0, 0, 0)
}

// ParsePersistOut decodes the first 24 bytes.
func ParsePersistOut(b []byte) (PersistOut, error) {
	if len(b) < PersistOutLen {
		return PersistOut{}, ErrListLength
	}
	return PersistOut{
		Key: binary.BigEndian.Uint64(b), ActionKey: binary.BigEndian.Uint64(b[8:]),
		SpecIPT: b[20]&8 != 0, AllPorts: b[20]&4 != 0, APTPL: b[20]&1 != 0,
	}, nil
}

// RegisterMove is the parameter list of REGISTER AND MOVE (SPC-4 §6.15.4): keys as
// above, 17: UNREG(02h) APTPL(01h), 18: relative target port (2), 20: length
// (4) of the TransportID that follows.
type RegisterMove struct {
	Key, ActionKey uint64
	Unregister     bool
	APTPL          bool
	RelativePort   uint16
	TransportID    []byte // part of the parsed list
}

// Append adds the parameter list.
func (p *RegisterMove) Append(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint64(dst, p.Key)
	dst = binary.BigEndian.AppendUint64(dst, p.ActionKey)
	dst = append(dst, 0, bit(p.Unregister, 2)|bit(p.APTPL, 1))
	dst = binary.BigEndian.AppendUint16(dst, p.RelativePort)
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(p.TransportID)))
	return append(dst, p.TransportID...)
}

// ParseRegisterMove decodes the list.
func ParseRegisterMove(b []byte) (RegisterMove, error) {
	if len(b) < 24 {
		return RegisterMove{}, ErrListLength
	}
	n := uint64(binary.BigEndian.Uint32(b[20:]))
	if n != uint64(len(b)-24) {
		return RegisterMove{}, ErrListLength
	}
	return RegisterMove{
		Key: binary.BigEndian.Uint64(b), ActionKey: binary.BigEndian.Uint64(b[8:]),
		Unregister: b[17]&2 != 0, APTPL: b[17]&1 != 0, RelativePort: binary.BigEndian.Uint16(b[18:]), TransportID: b[24:],
	}, nil
}

// ParseReadKeys decodes READ KEYS data: generation (4), length (4), keys.
func ParseReadKeys(b []byte) (generation uint32, keys []uint64, err error) {
	if len(b) < 8 {
		return 0, nil, ErrListLength
	}
	n := binary.BigEndian.Uint32(b[4:])
	generation = binary.BigEndian.Uint32(b)
	b = b[8:]
	for i := uint32(0); i+8 <= n && len(b) >= 8; i += 8 {
		keys = append(keys, binary.BigEndian.Uint64(b))
		b = b[8:]
	}
	return generation, keys, nil
}

// ParseReadReservation decodes READ RESERVATION data; typ is PRNone when there
// is no reservation.
func ParseReadReservation(b []byte) (generation uint32, key uint64, typ PRType, err error) {
	if len(b) < 8 {
		return 0, 0, 0, ErrListLength
	}
	generation = binary.BigEndian.Uint32(b)
	if binary.BigEndian.Uint32(b[4:]) == 0 {
		return generation, 0, PRNone, nil
	}
	if len(b) < 24 {
		return generation, 0, 0, ErrListLength
	}
	return generation, binary.BigEndian.Uint64(b[8:]), PRType(b[21] & 0xF), nil
}
