package volume

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"sync/atomic"
)

// Registrations through a node that does not have the volume. Hosts with several paths
// register on all of them, standby or not, and take a path that refuses for an error; later
// they write through it without another word. So such a node notes what it was asked for.
// A note is no registration: nobody has access by it, and nobody is kept from anything. At
// promotion it becomes one if the same host is registered with the same key through the
// node that had the volume. Who was preempted there, with the key that is in the note, is
// not. Notes are forgotten when the node ends, and at promotion.

// elsewhere is what a node that does not have the volume has been asked for. Both change
// with state.mu held.
type elsewhere struct {
	away  atomic.Bool                 // the volume moves, and is not here
	notes map[Registrant]Registration // key 0: its registration is to go
}

// Away reports whether another node has the reservations, or none.
func (b *reserved) Away() bool { return b.away.Load() }

// ReservationsElsewhere returns the snapshot of the node that has the volume, as far as it
// can be told from here: an owner saves before it answers. Preconditions: the volume moves.
func (b *reserved) ReservationsElsewhere() (*Reservations, error) {
	s := b.state
	raw, err := s.store.Peek(s.record(".json"))
	if errors.Is(err, fs.ErrNotExist) {
		return &Reservations{}, nil
	}
	if err != nil {
		return nil, err
	}
	kept, ok := s.parse(raw)
	if !ok {
		return nil, fmt.Errorf("%s is not the saved state of this logical unit", s.record(".json"))
	}
	return restoreReservations(&kept), nil
}

// noteLocked notes a registration. Preconditions: b.state.mu is held, the volume is away.
func (b *reserved) noteLocked(by *Client, q *Register) error {
	if q.Others != nil {
		return ErrAway
	}
	key, noted := b.notedLocked(by)
	if !q.Ignore && noted && q.Key != key {
		return ErrConflict
	}
	all := []Registrant{by.ID}
	if q.Ports != nil {
		all = q.Ports(by.ID)
	}
	n := len(b.notes)
	for _, k := range all {
		if _, has := b.notes[k]; !has {
			n++
		}
	}
	if n > maxRegistrations {
		return ErrTooMany
	}
	if b.notes == nil {
		b.notes = map[Registrant]Registration{}
	}
	for _, k := range all {
		b.notes[k] = Registration{Key: q.NewKey, AllPorts: q.Ports != nil, User: by.User}
	}
	return nil
}

// notedLocked returns the key that is noted of by, and whether anything is: not even that it
// has none.
func (b *reserved) notedLocked(by *Client) (key uint64, noted bool) {
	n, noted := b.notes[by.ID]
	return n.Key, noted
}

// hereLocked is called when the reservations have been read: they are those of this node now.
func (b *reserved) hereLocked() error {
	if !b.away.Load() {
		return nil
	}
	if err := b.admitLocked(); err != nil {
		return err
	}
	b.away.Store(false)
	return nil
}

// leave makes the reservations those of another node.
func (b *reserved) leave() {
	b.state.mu.Lock()
	defer b.state.mu.Unlock()
	b.away.Store(true)
}

// admitLocked makes registrations of the notes, in what the node that had the volume has
// left, and forgets them. Preconditions: b.state.mu is held.
func (b *reserved) admitLocked() error {
	old := b.now.Load()
	var now *Reservations
	change := func() {
		if now == nil {
			now = old.clone()
			now.Generation++
		}
	}
	for k, n := range b.notes {
		have, registered := old.regs[k]
		switch {
		case n.Key == 0 && registered:
			change()
			now.remove(k)
		case n.Key != 0 && n.Key != have.Key && old.admits(k, n):
			change()
			if registered || len(now.regs) < maxRegistrations { // the volume is to be had, whoever finds no room
				now.regs[k] = n
			}
		}
	}
	if now != nil {
		if err := b.publishLocked(now); err != nil {
			return err // the next promotion asks anew
		}
	}
	b.notes = nil
	return nil
}

// admits reports whether the host of k is registered as n says, through another port.
func (r *Reservations) admits(k Registrant, n Registration) bool {
	for other, reg := range r.regs {
		if other != k && reg.Key == n.Key && reg.User == n.User && host(other) == host(k) {
			return true
		}
	}
	return false
}

// host is the initiator without what tells its sessions apart: the name of an iSCSI port is
// that of the node, ",i,", and the session's identifier.
func host(k Registrant) string {
	name, _, _ := strings.Cut(k.Initiator, ",i,")
	return name
}
