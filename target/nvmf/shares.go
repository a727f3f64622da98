package nvmf

import (
	"errors"
	"net/netip"
	"sync"
	"sync/atomic"

	"softiser/blockdev"
	"softiser/internal/peerorigin"
	"softiser/target/volume"
)

// shares divides the memory that hosts can make the target hold, for data in capsules,
// parameters and answers, and the controllers that there may be, between those who are
// there: once half of what there is for them is taken, one holder has a share of it (ADR
// 102). A holder is the host whose name has been proved on a connection, by TLS or by
// DH-HMAC-CHAP, and until then where the connection comes from, since the data of Connect
// is held too (ADR 145).
type shares struct {
	pool *blockdev.Pool

	mu          sync.Mutex
	by          map[holder]*share // guarded by mu: those with connections
	controllers int               // guarded by mu: of all, those of hosts that still owe a proof included
	owing       int               // guarded by mu: of those hosts
}

// holder is who has a share: one of the two.
type holder struct {
	origin netip.Prefix
	host   string // NQN
}

// share is what one holder has. The counts but held are guarded by of.mu.
type share struct {
	of          *shares
	holder      holder
	conns       int
	controllers int
	owing       int          // controllers whose hosts still owe a proof, and are not in controllers
	held        atomic.Int64 // bytes
}

// shareOf is the part of all that there is which a holder has when half is taken.
const shareOf = 8

// owingOf is the part of all controllers that may be those of hosts that owe a proof.
const owingOf = 4

// join makes a connection from an address hold what it holds on that address's share.
func (s *shares) join(a netip.Addr) *holding {
	h := new(holding)
	s.mu.Lock()
	defer s.mu.Unlock()
	h.share.Store(s.joinLocked(holder{origin: peerorigin.Of(a)}))
	return h
}

func (s *shares) joinLocked(o holder) *share {
	if s.by == nil {
		s.by = map[holder]*share{}
	}
	h := s.by[o]
	if h == nil {
		h = &share{of: s, holder: o}
		s.by[o] = h
	}
	h.conns++
	return h
}

func (h *share) leaveLocked() {
	if h.conns--; h.conns == 0 {
		delete(h.of.by, h.holder)
	}
}

// holding is what one connection holds; it implements nvme.Memory.
type holding struct {
	share atomic.Pointer[share] // written with share.of.mu and mu held
	gone  bool                  // guarded by share.of.mu

	mu   sync.Mutex // a leaf: what is counted stays with the share that it is counted in
	held int64      // guarded by mu: bytes of share.held
}

// leave gives back the connection's part in its share; what it holds is still counted.
func (h *holding) leave() {
	s := h.share.Load().of
	s.mu.Lock()
	defer s.mu.Unlock()
	h.gone = true
	h.share.Load().leaveLocked()
}

// proved makes what the connection holds, now and from now on, that of a host that has
// proved its name.
func (h *holding) proved(host string) {
	s := h.share.Load().of
	s.mu.Lock()
	defer s.mu.Unlock()
	o := holder{host: host}
	if h.gone || h.share.Load().holder == o {
		return
	}
	to := s.joinLocked(o)
	h.mu.Lock()
	from := h.share.Swap(to)
	to.held.Add(h.held)
	from.held.Add(-h.held)
	h.mu.Unlock()
	from.leaveLocked()
}

// count adds n bytes to what the connection holds, and returns what the share has then.
func (h *holding) count(n int64) (of *share, has int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.held += n
	of = h.share.Load()
	return of, of.held.Add(n)
}

// Reserve implements nvme.Memory.
func (h *holding) Reserve(n int) bool {
	s, has := h.count(int64(n))
	p := s.of.pool
	reservable := p.Cap() / 2
	if has > reservable/shareOf && p.Reserved() > reservable/2 || !p.Reserve(n) {
		h.count(int64(-n))
		return false
	}
	return true
}

// Unreserve implements nvme.Memory.
func (h *holding) Unreserve(n int) {
	s, _ := h.count(int64(-n))
	s.of.pool.Unreserve(n)
}

// account is on whose account the host of an admin queue has staging memory for its writes, none
// of which is served before the host has proved what it is asked to.
func (q *queue) account(host string) volume.Holder {
	h := volume.Holder{Origin: peerorigin.Of(q.conn.Remote.Addr())}
	if q.auth != nil || q.identity != nil {
		h.Proved = host
	}
	return h
}

var errShare = errors.New("nvmf: the host has its share of the controllers, or its address has if it proves nothing")

// seat is a controller's place among those that there may be. Its fields are guarded by
// at.of.mu.
type seat struct {
	limit int    // of all
	at    *share // who has it
	owes  bool   // the host still has to prove its name
	over  bool   // given back
}

// sit takes a seat of limit that there are, for a controller whose admin queue is h. One whose
// host owes a proof is no controller of its address yet, which many hosts may share, but
// those are few.
func (h *holding) sit(limit int, owes bool) (*seat, error) {
	s := h.share.Load().of
	s.mu.Lock()
	defer s.mu.Unlock()
	x := &seat{limit: limit, at: h.share.Load(), owes: owes}
	few := max(limit/owingOf, 1)
	switch {
	case s.controllers >= limit:
		return nil, errBusy
	case owes && s.owing >= few/2 && x.at.owing >= max(few/shareOf, 1):
		return nil, errShare
	case owes:
		s.owing++
		x.at.owing++
	case !x.mayLocked(x.at):
		return nil, errShare
	default:
		x.at.controllers++
	}
	s.controllers++
	return x, nil
}

// mayLocked reports whether a holder may have one more controller.
func (x *seat) mayLocked(h *share) bool {
	return h.of.controllers < x.limit/2 || h.controllers < max(x.limit/shareOf, 1)
}

// proved makes the seat that of the host, which has proved its name on h.
func (x *seat) proved(h *holding) error {
	s := x.at.of
	s.mu.Lock()
	defer s.mu.Unlock()
	to := h.share.Load()
	switch {
	case x.over || !x.owes:
		return nil
	case !x.mayLocked(to):
		return errShare
	}
	s.owing--
	x.at.owing--
	to.controllers++
	x.at, x.owes = to, false
	return nil
}

// leave gives the seat back.
func (x *seat) leave() {
	s := x.at.of
	s.mu.Lock()
	defer s.mu.Unlock()
	if x.over {
		return
	}
	x.over = true
	s.controllers--
	if x.owes {
		s.owing--
		x.at.owing--
	} else {
		x.at.controllers--
	}
}
