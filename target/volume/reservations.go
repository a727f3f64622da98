package volume

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
)

// Persistent reservations, without the syntax of any protocol (SPC-4 §5.12; the six
// types and their rules are NVMe's as well). A registration is the key of one
// registrant; it outlives its connection. The whole state is an immutable snapshot:
// commands look at it without a lock, a change makes the next one under state.mu, saves
// it if it is to survive power loss, then publishes it (reserve.go). Whether a command
// conflicts is asked when it arrives and again when it takes effect.

// maxRegistrations bounds what initiators can make the volume remember.
const maxRegistrations = 1024

// ReservationType says whom a reservation keeps from what. The numbers are those of
// SPC-4, which are in saved state.
type ReservationType uint8

// Reservation types.
const (
	NoReservation              ReservationType = 0
	WriteExclusive             ReservationType = 1
	ExclusiveAccess            ReservationType = 3
	WriteExclusiveRegistrants  ReservationType = 5
	ExclusiveAccessRegistrants ReservationType = 6
	WriteExclusiveAll          ReservationType = 7 // all registrants hold it
	ExclusiveAccessAll         ReservationType = 8
)

// Valid reports whether t is one of the six.
func (t ReservationType) Valid() bool {
	return t == WriteExclusive || t == ExclusiveAccess || t >= WriteExclusiveRegistrants && t <= ExclusiveAccessAll
}

// String returns the name that both standards give the type.
func (t ReservationType) String() string {
	if s, ok := reservationNames[t]; ok {
		return s
	}
	return fmt.Sprintf("reservation type %d", uint8(t))
}

var reservationNames = map[ReservationType]string{
	NoReservation: "none", WriteExclusive: "write exclusive", ExclusiveAccess: "exclusive access",
	WriteExclusiveRegistrants: "write exclusive, registrants only", ExclusiveAccessRegistrants: "exclusive access, registrants only",
	WriteExclusiveAll: "write exclusive, all registrants", ExclusiveAccessAll: "exclusive access, all registrants",
}

// AllRegistrants reports whether every registrant holds the reservation.
func (t ReservationType) AllRegistrants() bool { return t >= WriteExclusiveAll }

// RegistrantsOnly reports whether every registrant has access.
func (t ReservationType) RegistrantsOnly() bool { return t >= WriteExclusiveRegistrants }

// writesOnly reports whether reading is free to all.
func (t ReservationType) writesOnly() bool {
	return t == WriteExclusive || t == WriteExclusiveRegistrants || t == WriteExclusiveAll
}

// Registration is what a registrant has registered.
type Registration struct {
	Key      uint64 `json:"key"`
	AllPorts bool   `json:"all_target_ports,omitempty"`
	User     string `json:"user,omitempty"` // who had proved who he is when it was made
}

// Reservations is a snapshot of the registrations and the reservation of a volume. It
// does not change.
type Reservations struct {
	Generation uint32 // counts registrations, clears and preempts; 0 at start-up, but for volumes that move between nodes
	Type       ReservationType
	Holder     Registrant // unless the type says all registrants
	Persist    bool       // kept through power loss

	regs map[Registrant]Registration
}

func (r *Reservations) clone() *Reservations {
	c := *r
	c.regs = maps.Clone(r.regs)
	if c.regs == nil {
		c.regs = map[Registrant]Registration{}
	}
	return &c
}

// Find returns what k has registered.
func (r *Reservations) Find(k Registrant) (Registration, bool) {
	reg, ok := r.regs[k]
	return reg, ok
}

// Len returns how many registrations there are.
func (r *Reservations) Len() int { return len(r.regs) }

// Registrants returns who is registered, in a stable order.
func (r *Reservations) Registrants() []Registrant {
	return slices.SortedFunc(maps.Keys(r.regs), func(a, b Registrant) int {
		if c := strings.Compare(a.Initiator, b.Initiator); c != 0 {
			return c
		}
		if c := strings.Compare(a.Target, b.Target); c != 0 {
			return c
		}
		return int(a.Port) - int(b.Port)
	})
}

// Holds reports whether k holds the reservation.
func (r *Reservations) Holds(k Registrant) bool {
	if r.Type == NoReservation {
		return false
	}
	if r.Type.AllRegistrants() {
		_, ok := r.regs[k]
		return ok
	}
	return r.Holder == k
}

// forbids reports whether the reservation keeps k from a command of class a.
func (r *Reservations) forbids(k Registrant, a Access) bool {
	if r.Type == NoReservation || a == Always || r.Holds(k) {
		return false
	}
	_, registered := r.regs[k]
	if registered && r.Type.RegistrantsOnly() {
		return false
	}
	return a == Writes || !r.Type.writesOnly()
}

// remove takes a registration away; the reservation goes with its holder, or
// with the last registrant. It reports whether that ended a reservation.
func (r *Reservations) remove(k Registrant) bool {
	held := r.Holds(k)
	delete(r.regs, k)
	if held && (!r.Type.AllRegistrants() || len(r.regs) == 0) {
		r.Type, r.Holder = NoReservation, Registrant{}
		return true
	}
	return false
}

// registered returns a filter for the clients, other than but, that are
// registered in r.
func (r *Reservations) registered(but *Client) func(*Client) bool {
	return func(c *Client) bool {
		_, ok := r.regs[c.ID]
		return ok && c != but
	}
}

// restoreReservations is what a state file tells.
func restoreReservations(kept *savedState) *Reservations {
	r := (&Reservations{}).clone()
	for _, reg := range kept.Regs {
		r.regs[reg.Registrant] = reg.Registration
	}
	r.Persist = len(r.regs) > 0 && !kept.Volatile
	r.Generation = kept.Generation
	if kept.PR != nil && kept.PR.Type.Valid() && len(r.regs) > 0 {
		r.Type = kept.PR.Type
		if kept.PR.Holder != nil {
			r.Holder = *kept.PR.Holder
		}
	}
	return r
}

// tell puts what of r is to survive a restart into a state file. Where nodes share it, all
// of it does: another node that goes on with the volume is no loss of power, of which
// registrations without APTPL or PTPL need not survive.
func (r *Reservations) tell(next *savedState, shared bool) {
	next.Regs, next.PR, next.Generation, next.Volatile = nil, nil, 0, false
	if shared {
		next.Generation, next.Volatile = r.Generation, !r.Persist && len(r.regs) > 0
	} else if !r.Persist {
		return
	}
	for _, k := range r.Registrants() {
		next.Regs = append(next.Regs, savedReg{k, r.regs[k]})
	}
	if r.Type != NoReservation {
		next.PR = &savedPR{Type: r.Type}
		if !r.Type.AllRegistrants() {
			next.PR.Holder = &r.Holder
		}
	}
}

// reserved is the part of a volume that keeps its reservations.
type reserved struct {
	state *state
	tasks *Tasks
	tell  func(Event)

	now    atomic.Pointer[Reservations] // immutable; never nil
	seizer atomic.Pointer[Client]

	elsewhere
}

// Reservations returns the present snapshot.
func (b *reserved) Reservations() *Reservations { return b.now.Load() }

// Reserved reports whether there is a reservation, so that Forbids has to be asked.
func (b *reserved) Reserved() bool {
	return b.seizer.Load() != nil || b.now.Load().Type != NoReservation
}

// Forbids reports whether a reservation keeps c from reading or writing the medium.
func (b *reserved) Forbids(c *Client, a Access) bool {
	if h := b.seizer.Load(); h != nil && h != c && a != Always {
		return true
	}
	return b.now.Load().forbids(c.ID, a)
}

// Seizer returns the client that keeps all others off, nil: none does. It is the
// reservation of SPC-2, which ends with its client.
func (b *reserved) Seizer() *Client { return b.seizer.Load() }

// Seize makes c the client that keeps all others off, unless another one does.
func (b *reserved) Seize(c *Client) bool {
	return b.seizer.CompareAndSwap(nil, c) || b.seizer.Load() == c
}

// Unseize ends that if c is the one, or whoever it is when c is nil.
func (b *reserved) Unseize(c *Client) {
	if c == nil {
		b.seizer.Store(nil)
	} else {
		b.seizer.CompareAndSwap(c, nil)
	}
}

// publishLocked puts r in force, kept through power loss if it asks for that; what was
// kept before is forgotten if not. Preconditions: b.state.mu is held.
func (b *reserved) publishLocked(r *Reservations) error {
	s := b.state
	if s.store != nil && (r.Persist || b.now.Load().Persist || s.unsaved || s.store.Shared()) {
		next := s.kept
		r.tell(&next, s.store.Shared())
		if err := s.save(next); err != nil {
			return err
		}
	}
	b.now.Store(r)
	return nil
}
