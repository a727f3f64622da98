package nvme

import (
	"encoding/binary"
	"fmt"
)

// ReservationType is the type of a reservation.
type ReservationType uint8

// Reservation types.
const (
	ReservationNone               ReservationType = 0
	WriteExclusive                ReservationType = 1
	ExclusiveAccess               ReservationType = 2
	WriteExclusiveRegistrantsOnly ReservationType = 3
	ExclusiveAccessRegistrants    ReservationType = 4
	WriteExclusiveAllRegistrants  ReservationType = 5
	ExclusiveAccessAllRegistrants ReservationType = 6
)

// Valid reports whether t is one of the six types.
func (t ReservationType) Valid() bool {
	return t >= WriteExclusive && t <= ExclusiveAccessAllRegistrants
}

// Actions of the reservation commands.
const (
	RegisterKey   = 0 // Register
	UnregisterKey = 1
	ReplaceKey    = 2

	AcquireReservation = 0 // Acquire
	PreemptReservation = 1
	PreemptAndAbort    = 2

	ReleaseReservation = 0 // Release
	ClearReservation   = 1
)

// Changes of whether reservations persist through power loss (CPTPL).
const (
	PersistUnchanged = 0
	PersistOff       = 2
	PersistOn        = 3
)

// Reservation is the view of Reservation Register, Acquire and Release.
//
//	  +-------------+-------------+-----------------------+---+
//	40|A 2:0|IEKEY 3| type        | reserved              |CPT|
//	  +-------------------------------------------------------+
type Reservation struct{ *SQE }

// Reservation views s as Reservation Register, Acquire or Release.
func (s *SQE) Reservation() Reservation { return Reservation{s} }

// NewReservation clears s and makes it one of the three commands.
func (s *SQE) NewReservation(op Opcode, nsid uint32, action uint8, t ReservationType, ignoreKey bool) Reservation {
	s.Init(op, nsid)
	s[40] = action & 7
	if ignoreKey {
		s[40] |= 1 << 3
	}
	s[41] = byte(t)
	return Reservation{s}
}

// Action returns what is to be done.
func (c Reservation) Action() uint8 { return c.SQE[40] & 7 }

// IgnoreKey reports whether the current key is not to be compared.
func (c Reservation) IgnoreKey() bool { return c.SQE[40]&8 != 0 }

// Type returns the reservation type, of Acquire and Release.
func (c Reservation) Type() ReservationType { return ReservationType(c.SQE[41]) }

// Persist returns whether reservations shall persist through power loss, of
// Register.
func (c Reservation) Persist() uint8 { return c.SQE[43] >> 6 }

// SetPersist sets whether reservations shall persist through power loss.
func (c Reservation) SetPersist(v uint8) { c.SQE[43] = c.SQE[43]&0x3F | v<<6 }

// Lengths of the data of reservation commands, bytes.
const (
	RegisterDataLen = 16 // current key, new key
	AcquireDataLen  = 16 // current key, key to preempt
	ReleaseDataLen  = 8  // current key
)

// AppendKeys adds the data of a reservation command: its keys.
func AppendKeys(dst []byte, keys ...uint64) []byte {
	for _, k := range keys {
		dst = binary.LittleEndian.AppendUint64(dst, k)
	}
	return dst
}

// ReservationReport is the view of a Reservation Report command.
type ReservationReport struct{ *SQE }

// ReservationReport views s as a Reservation Report.
func (s *SQE) ReservationReport() ReservationReport { return ReservationReport{s} }

// NewReservationReport clears s and makes it ask for n bytes, a multiple of 4, of
// the report with host identifiers of 128 bits.
func (s *SQE) NewReservationReport(nsid, n uint32) ReservationReport {
	s.Init(OpReservationReport, nsid)
	s.SetCDW(10, n/4-1)
	s.SetCDW(11, 1)
	return ReservationReport{s}
}

// Length returns how many bytes are asked for.
func (c ReservationReport) Length() uint64 { return uint64(c.CDW(10))*4 + 4 }

// Extended reports whether host identifiers of 128 bits are asked for.
func (c ReservationReport) Extended() bool { return c.CDW(11)&1 != 0 }

// Registrant is one host of a reservation report.
type Registrant struct {
	CntlID uint16 // FFFFh: more than one controller, or none
	Holder bool
	Key    uint64
	HostID HostID
}

// ReservationState is what a reservation report tells.
type ReservationState struct {
	Generation  uint32
	Type        ReservationType
	Persist     bool
	Registrants []Registrant
}

const (
	reportHeader = 64
	reportEntry  = 64
)

// AppendTo adds the report with host identifiers of 128 bits.
//
//	  +------------------------------+    +------------------------------+
//	 0| generation (4)               |   0| controller (2)               |
//	 4| type                         |   2| holder                       |
//	 5| number of registrants (2)    |   8| key (8)                      |
//	 9| persists through power loss  |  16| host identifier (16)         |
//	64| registrants, 64 bytes each   |  64+------------------------------+
//	  +------------------------------+
func (r *ReservationState) AppendTo(dst []byte) []byte {
	le := binary.LittleEndian
	dst, b := grow(dst, reportHeader+reportEntry*len(r.Registrants))
	le.PutUint32(b, r.Generation)
	b[4] = byte(r.Type)
	le.PutUint16(b[5:], uint16(len(r.Registrants)))
	if r.Persist {
		b[9] = 1
	}
	for i, g := range r.Registrants {
		e := b[reportHeader+reportEntry*i:]
		le.PutUint16(e, g.CntlID)
		if g.Holder {
			e[2] = 1
		}
		le.PutUint64(e[8:], g.Key)
		copy(e[16:], g.HostID[:])
	}
	return dst
}

// ParseReservationState reads a report. One that was cut short tells the
// registrants that are in it.
func ParseReservationState(b []byte) (*ReservationState, error) {
	if len(b) < reportHeader {
		return nil, fmt.Errorf("nvme: reservation report of %d bytes, its header has %d", len(b), reportHeader)
	}
	le := binary.LittleEndian
	r := &ReservationState{Generation: le.Uint32(b), Type: ReservationType(b[4]), Persist: b[9]&1 != 0}
	n := int(le.Uint16(b[5:]))
	b = b[reportHeader:]
	for ; n > 0 && len(b) >= reportEntry; n, b = n-1, b[reportEntry:] {
		r.Registrants = append(r.Registrants, Registrant{
			CntlID: le.Uint16(b), Holder: b[2]&1 != 0, Key: le.Uint64(b[8:]), HostID: HostID(b[16:32]),
		})
	}
	return r, nil
}

// ReservationLogLen is the length of the reservation notification log, bytes.
const ReservationLogLen = 64

// ReservationNotice is what happened to a registrant.
type ReservationNotice uint8

// Notices of the reservation notification log.
const (
	NoticeNone                  ReservationNotice = 0
	NoticeRegistrationPreempted ReservationNotice = 1
	NoticeReservationReleased   ReservationNotice = 2
	NoticeReservationPreempted  ReservationNotice = 3
)

// ReservationLog is the reservation notification log: the oldest notice that has
// not been read.
type ReservationLog struct {
	Count   uint64 // notices so far; 0 with NoticeNone
	Notice  ReservationNotice
	Further uint8 // more of them that wait, 255 at most
	NSID    uint32
}

// AppendTo adds the log page.
func (l *ReservationLog) AppendTo(dst []byte) []byte {
	dst, b := grow(dst, ReservationLogLen)
	binary.LittleEndian.PutUint64(b, l.Count)
	b[8], b[9] = byte(l.Notice), l.Further
	binary.LittleEndian.PutUint32(b[12:], l.NSID)
	return dst
}

// ParseReservationLog reads the log page.
func ParseReservationLog(b []byte) (ReservationLog, error) {
	if len(b) < ReservationLogLen {
		return ReservationLog{}, fmt.Errorf("nvme: reservation notification log of %d bytes", len(b))
	}
	return ReservationLog{
		Count: binary.LittleEndian.Uint64(b), Notice: ReservationNotice(b[8]), Further: b[9], NSID: binary.LittleEndian.Uint32(b[12:]),
	}, nil
}
