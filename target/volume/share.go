package volume

import (
	"net/netip"
	"slices"
	"sync"

	"softiser/blockdev"
)

// Holder is who answers for the staging memory that writes hold while their data is on the way:
// where the client comes from (peerorigin.Of), and who it has proved to be there, "" if nobody.
type Holder struct {
	Origin netip.Prefix
	Proved string
}

// Of the staging memory, writes have these parts.
const (
	volumeShareOf = 8
	holderShareOf = 4
)

// shares divides the staging memory that writes have among the volumes of a Registry and those
// who write, as it is held for as long as a peer takes to send, and a device to write:
//
//	a volume has an eighth    one that hangs leaves the others theirs,
//	a holder has a quarter    and so does a host that is gone or sends nothing; a host of which
//	                          one volume hangs has as much left for the others
//
// A write beyond either share waits (Staging), without a worker, until some of it comes back, which has
// no bound of its own: data that does not come ends its connection, and who waits for a volume that hangs waits for
// storage. Holders take turns at a volume; those of one go in order. The zero value is ready.
//
// Its lock comes before Tasks.mu.
type shares struct {
	mu      sync.Mutex
	holders map[Holder]*holderShare // guarded by mu: those who hold some or wait, and a few more
}

// keepHolders is how many holders are kept who hold nothing, so that nothing is allocated for most writes.
const keepHolders = 64

// holderShare is what a holder has, guarded by shares.mu.
type holderShare struct {
	id    Holder
	held  int64 // bytes
	rings []*shareRing
}

// volumeShare is what the writes of a volume have, guarded by of.mu but for of and pool.
type volumeShare struct {
	of    *shares
	pool  *blockdev.Pool // of which it is
	held  int64          // bytes
	rings []*shareRing   // of holders with writes that wait, next turn first
	full  bool           // one of them waits for room of the volume alone, and goes before all that come
	waits uint64         // writes that have had to wait, so far
}

// shareRing is the FIFO of a holder's writes that wait at a volume.
type shareRing struct {
	vol    *volumeShare
	holder *holderShare
	opQueue
}

// shared is what an op has of the shares, guarded by shares.mu; but whether vol is nil is
// for who has the op.
type shared struct {
	vol    *volumeShare // nil: nothing
	holder *holderShare
	n      int64      // bytes
	ring   *shareRing // that it waits in; nil: it has its n bytes
}

// Stage gives o, which runs, a share of the staging memory for a lease of n bytes from off
// that Lender is about to lend, if that is where it comes from. If it reports false o waits: a
// worker calls its Step when there is room, where Stage reports true. Unstage gives the share back, when the lease has been
// released, or the op has been aborted.
func (v *Volume) Stage(o *Op, off, n int64) bool {
	if o.shared.vol != nil || v.Geo().Info.InPlace && !v.Verified(off, n) {
		return true
	}
	return v.share.take(o, n)
}

// Unstage gives back what Stage has given to o, or takes it out of those who wait.
func (v *Volume) Unstage(o *Op) {
	if o.shared.vol != nil {
		o.shared.vol.giveBack(o)
	}
}

// waited returns how many writes have had to wait.
func (s *volumeShare) waited() uint64 {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	return s.waits
}

// room reports whether a share of most bytes, of which held are out, has n more. One of which nothing is out has
// room for any.
func room(held, n, most int64) bool { return held == 0 || held+n <= most }

func (s *volumeShare) room(n int64) bool { return room(s.held, n, s.pool.Cap()/volumeShareOf) }

func (s *volumeShare) holderRoom(h *holderShare, n int64) bool {
	return room(h.held, n, s.pool.Cap()/holderShareOf)
}

// take gives o its n bytes, or makes it wait and reports false.
func (s *volumeShare) take(o *Op, n int64) bool {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	h := s.of.holderLocked(o.Client.Holder)
	ring := s.ringLocked(h)
	w := shared{vol: s, holder: h, n: n}
	if ring == nil && !s.full && s.room(n) && s.holderRoom(h, n) {
		w.chargeLocked()
		o.shared = w
		return true
	}
	first := ring == nil
	if first {
		ring = &shareRing{vol: s, holder: h}
	}
	w.ring = ring
	if !o.waitForShare(w) {
		return false
	}
	// From here on an abort may end o, whose Unstage waits for the lock.
	if first {
		s.rings, h.rings = append(s.rings, ring), append(h.rings, ring)
		s.full = s.full || s.holderRoom(h, n) && !s.room(n)
	}
	ring.push(o)
	s.waits++
	return false
}

// ringLocked returns the ring of a holder at the volume; nil: none of its writes waits here.
func (s *volumeShare) ringLocked(h *holderShare) *shareRing {
	for _, r := range s.rings {
		if r.holder == h {
			return r
		}
	}
	return nil
}

// holderLocked returns the share of a holder.
func (a *shares) holderLocked(id Holder) *holderShare {
	h := a.holders[id]
	if h == nil {
		if a.holders == nil {
			a.holders = map[Holder]*holderShare{}
		}
		h = &holderShare{id: id}
		a.holders[id] = h
	}
	return h
}

func (w *shared) chargeLocked() {
	w.vol.held += w.n
	w.holder.held += w.n
}

// giveBack ends what o has, or waits for, and lets others go.
func (s *volumeShare) giveBack(o *Op) {
	a := s.of
	a.mu.Lock()
	defer a.mu.Unlock()
	w := &o.shared
	h := w.holder
	if r := w.ring; r != nil {
		r.remove(o)
		r.endLocked()
	} else {
		s.held -= w.n
		h.held -= w.n
	}
	*w = shared{}
	s.serveLocked()
	for i := 0; i < len(h.rings); { // it may have waited at other volumes for this
		r := h.rings[i]
		if r.vol != s {
			r.vol.serveLocked()
		}
		if i < len(h.rings) && h.rings[i] == r {
			i++
		}
	}
	if h.held == 0 && len(h.rings) == 0 && len(a.holders) > keepHolders {
		delete(a.holders, h.id)
	}
}

// serveLocked lets those go for whom there is room.
func (s *volumeShare) serveLocked() {
	s.full = false
	for i := 0; i < len(s.rings); {
		r := s.rings[i]
		n := r.head.shared.n
		switch {
		case !s.holderRoom(r.holder, n):
			i++
		case !s.room(n):
			s.full = true
			return
		default:
			r.grantLocked()
			s.rings = append(slices.Delete(s.rings, i, i+1), r) // its next turn is after the others'
			r.endLocked()
		}
	}
}

// grantLocked lets the first write of the ring go.
func (r *shareRing) grantLocked() {
	o := r.pop()
	o.shared.ring = nil
	o.shared.chargeLocked()
	o.hasShare()
}

// endLocked takes the ring away if nobody waits in it.
func (r *shareRing) endLocked() {
	if r.head != nil {
		return
	}
	is := func(x *shareRing) bool { return x == r }
	r.vol.rings = slices.DeleteFunc(r.vol.rings, is)
	r.holder.rings = slices.DeleteFunc(r.holder.rings, is)
}

// waitForShare has o, which runs, wait for its share w. It reports false if o has been aborted: nobody would
// end the wait then, so a worker ends the op.
func (o *Op) waitForShare(w shared) bool {
	t := o.set
	t.mu.Lock()
	defer t.mu.Unlock()
	if o.Aborted() {
		t.pool.takeLocked(o)
		return false
	}
	o.shared = w
	o.to(Staging)
	return true
}

// hasShare has a worker go on with o, unless it has been aborted meanwhile.
func (o *Op) hasShare() {
	t := o.set
	t.mu.Lock()
	defer t.mu.Unlock()
	if o.state == Staging {
		t.pool.takeLocked(o)
	}
}
