package blockio

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// ReservationType is one of the six kinds of persistent reservation, which SCSI (SPC-4
// §5.12) and NVMe (NVM Express 1.4 §8.8) have in common. Its text is the standards' name in
// small letters, with hyphens.
type ReservationType uint8

// Types of reservations.
const (
	NoReservation              ReservationType = iota
	WriteExclusive                             // others may read
	ExclusiveAccess                            // others may do neither
	WriteExclusiveRegistrants                  // every registrant may write, one of them holds it
	ExclusiveAccessRegistrants                 // the same for reading as well
	WriteExclusiveAll                          // every registrant holds it
	ExclusiveAccessAll
)

var reservationNames = [...]string{
	"none", "write-exclusive", "exclusive-access", "write-exclusive-registrants-only", "exclusive-access-registrants-only",
	"write-exclusive-all-registrants", "exclusive-access-all-registrants",
}

// ReservationTypes are the names of the six types.
func ReservationTypes() []string { return reservationNames[WriteExclusive:] }

// String returns the name of the type.
func (t ReservationType) String() string {
	if int(t) < len(reservationNames) {
		return reservationNames[t]
	}
	return fmt.Sprintf("reservation type %d", uint8(t))
}

// MarshalText implements encoding.TextMarshaler.
func (t ReservationType) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (t *ReservationType) UnmarshalText(b []byte) error {
	if i := slices.Index(reservationNames[:], string(b)); i >= 0 {
		*t = ReservationType(i)
		return nil
	}
	return fmt.Errorf("%q is no type of reservation; there are %s", b, strings.Join(ReservationTypes(), ", "))
}

// Registration changes whether, and with which key, the initiator is registered.
type Registration struct {
	Key    uint64 // that it is registered with; 0: it is not registered
	NewKey uint64 // that it will be registered with; 0: its registration goes
	Ignore bool   // Key is not looked at
	// Persist has registrations and reservation outlive a loss of power of the target.
	Persist bool
}

// Preemption takes away the registrations with the key Victim, and the reservation if its
// holder is among them, which the initiator then holds with the type given.
type Preemption struct {
	Key, Victim uint64
	Type        ReservationType
	Abort       bool // what the preempted have under way ends
}

// Registrant is somebody who is registered.
type Registrant struct {
	Key    uint64
	Holder bool
	// Name tells who it is: of SCSI, the name of the initiator's port; of NVMe, the host
	// identifier as a UUID. "": the target does not tell.
	Name string
	Port uint16 // relative target port through which it registered, of SCSI; 0: not told
}

// Reservations are the registrations of a volume and its reservation.
type Reservations struct {
	Generation  uint32
	Type        ReservationType // NoReservation: nobody holds one
	Persist     bool            // they outlive a loss of power
	Registrants []Registrant
}

// Reserver is a volume that its initiators can reserve among themselves. They register with
// a key first, and may then acquire the reservation. Registrations belong to the initiator's
// port: of SCSI, the initiator's name with its session identifier (ISID); of NVMe, to the
// host's identifier. They outlive sessions. What meets the reservation or the key of
// somebody else ends with ErrReservation.
type Reserver interface {
	Register(ctx context.Context, r Registration) error
	// Reserve acquires the reservation; key is the initiator's.
	Reserve(ctx context.Context, key uint64, t ReservationType) error
	// Unreserve releases the reservation, whose type is t.
	Unreserve(ctx context.Context, key uint64, t ReservationType) error
	Preempt(ctx context.Context, p Preemption) error
	// ClearReservations ends the reservation and all registrations.
	ClearReservations(ctx context.Context, key uint64) error
	// Reservations reports them. It needs no registration.
	Reservations(ctx context.Context) (*Reservations, error)
}
