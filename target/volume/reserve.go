package volume

import (
	"errors"
	"maps"
)

// Why a change of reservations is refused.
var (
	ErrConflict   = errors.New("volume: reservation conflict")
	ErrTooMany    = errors.New("volume: no room for further registrations")
	ErrNotKept    = errors.New("volume: there is nowhere to keep reservations through power loss")
	ErrType       = errors.New("volume: no such reservation type")
	ErrOtherType  = errors.New("volume: the reservation is of another type")
	ErrNoVictim   = errors.New("volume: no key to preempt")
	ErrRegistered = errors.New("volume: only who is not registered may register others")
	ErrAway       = errors.New("volume: another node has the reservations")
)

// reserving is one change of the reservations under way.
type reserving struct {
	by     *Client
	old    *Reservations
	now    *Reservations // nil: nothing changes
	key    uint64        // of by
	member bool          // by is registered
	kept   bool          // there is somewhere to keep them
	events []Event       // told when the change has been published
}

// next makes the snapshot that is to come.
func (c *reserving) next() *Reservations {
	c.now = c.old.clone()
	return c.now
}

func (c *reserving) tell(k EventKind, who func(*Client) bool) {
	c.events = append(c.events, Event{Kind: k, Who: who})
}

// mustHave refuses who is not registered with the key.
func (c *reserving) mustHave(key uint64) error {
	if !c.member || key != c.key {
		return ErrConflict
	}
	return nil
}

// reserve carries out the change that f decides on: saved if that is asked for, then
// published, then told. An error that is none of the refusals says that the state could
// not be saved; nothing has changed then either. Where the volume is not here, away takes the
// place of f; nil: it is refused.
func (b *reserved) reserve(by *Client, away func() error, f func(*reserving) error) error {
	b.state.mu.Lock()
	if b.away.Load() {
		defer b.state.mu.Unlock()
		if away == nil {
			return ErrAway
		}
		return away()
	}
	c := reserving{kept: b.state.store != nil, by: by, old: b.now.Load()}
	reg, ok := c.old.regs[by.ID]
	c.key, c.member = reg.Key, ok
	err := f(&c)
	if err == nil && c.now != nil {
		if len(c.now.regs) > maxRegistrations {
			err = ErrTooMany
		} else {
			err = b.publishLocked(c.now)
		}
	}
	b.state.mu.Unlock()
	if err != nil {
		return err
	}
	for _, e := range c.events {
		b.tell(e)
	}
	return nil
}

// Register describes a registration.
type Register struct {
	Key     uint64 // as it is; does not count with Ignore
	NewKey  uint64 // 0: the registration goes
	Ignore  bool   // whatever is registered
	Persist bool   // reservations survive power loss from now on, until a registration says otherwise
	Keep    bool   // Persist does not count: it stays as it is
	// Ports returns the registrants that stand for one through all ports of its target;
	// nil: the registration is for one port.
	Ports func(Registrant) []Registrant
	// Others names those to be registered along with the client, who must not be
	// registered yet; nil: none.
	Others func() ([]Registrant, error)
}

// Register registers by, registers it anew, or ends its registration.
func (b *reserved) Register(by *Client, q *Register) error {
	return b.reserve(by, func() error { return b.noteLocked(by, q) }, func(c *reserving) error { return c.register(q) })
}

// register changes registrations, as REGISTER, REGISTER AND IGNORE EXISTING KEY and
// Reservation Register do.
func (c *reserving) register(q *Register) error {
	persist := q.Persist
	if q.Keep {
		persist = c.old.Persist
	}
	if persist && !c.kept {
		return ErrNotKept
	}
	if err := c.mayRegister(q); err != nil {
		return err
	}
	if !c.member && q.NewKey == 0 && q.Others == nil {
		return nil // nothing to unregister
	}
	all := []Registrant{c.by.ID}
	if q.Others != nil {
		more, err := q.Others()
		if err != nil {
			return err
		}
		all = append(all, more...)
	}
	now := c.next()
	now.Generation++
	now.Persist = persist
	if q.NewKey == 0 {
		c.unregister(now)
		return nil
	}
	return c.enter(now, q, all)
}

// mayRegister refuses who gives another key than the one registered, or others who may not be registered along.
func (c *reserving) mayRegister(q *Register) error {
	switch {
	case !q.Ignore && c.member && q.Key != c.key, !q.Ignore && !c.member && q.Key != 0:
		return ErrConflict
	case q.Others != nil && (c.member || q.Ignore):
		return ErrRegistered
	}
	return nil
}

// enter registers all with the new key, each at all the ports that it stands for.
func (c *reserving) enter(now *Reservations, q *Register, all []Registrant) error {
	for _, k := range all {
		at := []Registrant{k}
		if q.Ports != nil {
			at = q.Ports(k)
		}
		r := Registration{Key: q.NewKey, AllPorts: q.Ports != nil}
		if k == c.by.ID {
			r.User = c.by.User
		}
		for _, x := range at {
			if _, taken := now.regs[x]; taken && x != c.by.ID && q.Others != nil {
				return ErrConflict
			}
			now.regs[x] = r
		}
	}
	return nil
}

// unregister removes the client's own registration. If that ends a registrants
// only reservation, the other registrants learn it.
func (c *reserving) unregister(now *Reservations) {
	typ := now.Type
	if now.remove(c.by.ID) && (typ == WriteExclusiveRegistrants || typ == ExclusiveAccessRegistrants) {
		c.tell(ReservationReleased, now.registered(c.by))
	}
}

// Reserve takes the reservation.
func (b *reserved) Reserve(by *Client, key uint64, typ ReservationType) error {
	return b.reserve(by, nil, func(c *reserving) error {
		if err := c.mustHave(key); err != nil {
			return err
		}
		if !typ.Valid() {
			return ErrType
		}
		if c.old.Type != NoReservation {
			if c.old.Holds(by.ID) && c.old.Type == typ {
				return nil
			}
			return ErrConflict
		}
		now := c.next()
		now.Type, now.Holder = typ, by.ID
		return nil
	})
}

// Unreserve ends the reservation. A registrant that is not the holder changes nothing,
// which is no error. After a type that others had access under, they learn it.
func (b *reserved) Unreserve(by *Client, key uint64, typ ReservationType) error {
	notHolder := func() error {
		if noted, ok := b.notedLocked(by); !ok || noted == 0 || noted != key {
			return ErrConflict
		}
		return nil
	}
	return b.reserve(by, notHolder, func(c *reserving) error {
		if err := c.mustHave(key); err != nil {
			return err
		}
		if !c.old.Holds(by.ID) {
			return nil
		}
		if typ != c.old.Type {
			return ErrOtherType
		}
		now := c.next()
		now.Type, now.Holder = NoReservation, Registrant{}
		if typ.RegistrantsOnly() {
			c.tell(ReservationReleased, c.old.registered(by))
		}
		return nil
	})
}

// ClearReservations ends the reservation and all registrations.
func (b *reserved) ClearReservations(by *Client, key uint64) error {
	return b.reserve(by, nil, func(c *reserving) error {
		if err := c.mustHave(key); err != nil {
			return err
		}
		now := c.next()
		now.Generation++
		now.regs = map[Registrant]Registration{}
		now.Type, now.Holder = NoReservation, Registrant{}
		c.tell(ReservationPreempted, c.old.registered(by))
		return nil
	})
}

// Preempt describes a preemption.
type Preempt struct {
	Key    uint64          // of the preempting registrant
	Victim uint64          // registrations with this key go; 0: those of all other registrants, who hold the reservation
	Type   ReservationType // of the reservation that takes the place of the victim's
	// Ended, if it is set, makes it a preempt and abort: the commands and copies of the
	// preempted end, except Except, and when all have ended, Ended is called, on any
	// goroutine and perhaps before Preempt returns. It is not called after an error.
	Ended  func()
	Except *Op
}

// Preempt (SPC-4 §5.12.11.4): registrations with the victim's key go; if the key is
// the holder's, by takes the reservation over with the type given.
func (b *reserved) Preempt(by *Client, q *Preempt) error {
	var abort map[Registrant]bool
	if err := b.reserve(by, nil, func(c *reserving) (err error) {
		abort, err = c.preempt(q)
		return err
	}); err != nil || q.Ended == nil {
		return err
	}
	w := NewWait(q.Ended)
	if len(abort) > 0 {
		b.tasks.AbortWith(func(o *Op) AbortReason {
			if o == q.Except || !abort[o.Client.ID] {
				return NotAborted
			}
			return o.Client.By(by)
		}, func(c *Client) bool { return abort[c.ID] }, w)
	}
	w.Done()
	return nil
}

// takesOver reports whether a preemption of the victim's key takes the reservation over, and not only registrations
// away: the key is the holder's, or it is 0 and all registrants hold the reservation.
func (c *reserving) takesOver(victim uint64) bool {
	switch {
	case c.old.Type == NoReservation:
		return false
	case c.old.Type.AllRegistrants():
		return victim == 0
	}
	return c.old.regs[c.old.Holder].Key == victim
}

// preempt returns those whose commands a preempt and abort ends.
func (c *reserving) preempt(q *Preempt) (abort map[Registrant]bool, err error) {
	if err := c.mustHave(q.Key); err != nil {
		return nil, err
	}
	takes := c.takesOver(q.Victim)
	if q.Victim == 0 && !takes {
		return nil, ErrNoVictim
	}
	if takes && !q.Type.Valid() {
		return nil, ErrType
	}
	now := c.next()
	now.Generation++
	gone, found := map[Registrant]bool{}, false
	for k, r := range c.old.regs {
		match := r.Key == q.Victim || takes && c.old.Type.AllRegistrants()
		found = found || match
		if match && k != c.by.ID {
			delete(now.regs, k)
			gone[k] = true
		}
	}
	if !found {
		return nil, ErrConflict
	}
	if takes {
		now.Type, now.Holder = q.Type, c.by.ID
		if q.Type != c.old.Type { // whichever they are
			c.tell(ReservationReleased, now.registered(c.by))
		}
	}
	c.tell(RegistrationPreempted, func(x *Client) bool { return gone[x.ID] })
	if !takes || q.Victim != c.key {
		return gone, nil
	}
	abort = maps.Clone(gone) // gone is what is told
	abort[c.by.ID] = true
	return abort, nil
}

// Move describes how a reservation is handed over.
type Move struct {
	NewKey     uint64 // of the new holder
	To         Registrant
	Persist    bool // through a loss of power, from now on (APTPL)
	Unregister bool // the old holder's registration goes
}

// mayMove refuses who may not hand the reservation over.
func (c *reserving) mayMove(key uint64) error {
	if err := c.mustHave(key); err != nil {
		return err
	}
	if !c.old.Holds(c.by.ID) || c.old.Type.AllRegistrants() {
		return ErrConflict
	}
	return nil
}

// MoveReservation registers another client and hands the reservation over to it (SPC-4
// §5.12.8). describe is called once it is known that key may do so, and says to whom.
func (b *reserved) MoveReservation(by *Client, key uint64, describe func() (Move, error)) error {
	return b.reserve(by, nil, func(c *reserving) error {
		if err := c.mayMove(key); err != nil {
			return err
		}
		m, err := describe()
		if err != nil {
			return err
		}
		now := c.next()
		now.Generation++
		now.Persist = m.Persist
		now.regs[m.To] = Registration{Key: m.NewKey}
		now.Holder = m.To
		if m.Unregister {
			delete(now.regs, by.ID)
		}
		return nil
	})
}

// rename makes the next snapshot, in which f has changed names and registrations: it
// returns what stands for one, and whether that is something else. Nothing happens if
// nothing changes.
func (b *reserved) rename(f func(Registrant, Registration) (Registrant, Registration, bool)) error {
	b.state.mu.Lock()
	defer b.state.mu.Unlock()
	old := b.now.Load()
	var now *Reservations
	for k, r := range old.regs {
		k2, r2, differs := f(k, r)
		if !differs {
			continue
		}
		if now == nil {
			now = old.clone()
		}
		delete(now.regs, k)
		now.regs[k2] = r2
		if old.Holder == k {
			now.Holder = k2
		}
	}
	if now == nil {
		return nil
	}
	return b.publishLocked(now)
}

// Disown forgets the users of the registrations that match. They stay, and so do the
// reservations: whoever next proves a right to the name has them.
func (b *reserved) Disown(match func(Registrant) bool) error {
	return b.rename(func(k Registrant, r Registration) (Registrant, Registration, bool) {
		had := r.User != "" && match(k)
		if had {
			r.User = ""
		}
		return k, r, had
	})
}

// Adopt makes the registrations of a version before volumes could have several targets
// those of target: it had one then. Whoever serves the volume calls it before any
// client is there.
func (b *reserved) Adopt(target string) error {
	return b.rename(func(k Registrant, r Registration) (Registrant, Registration, bool) {
		if k.Target != "" {
			return k, r, false
		}
		k.Target = target
		return k, r, true
	})
}
