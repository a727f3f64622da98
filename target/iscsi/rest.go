package iscsi

import (
	"context"
	"errors"
	"sync"

	"softiser/internal/iscsi"
	"softiser/internal/iser"
	"softiser/target/portal"
)

// A process that another one replaces brings its sessions to a standstill, and hands them
// over (carry.go). The window is not opened any more, so that the initiator runs out of
// commands; a connection is read as long as it owes the data of a WRITE, and then stops in
// front of a PDU; what has begun ends and is answered. Then a session is a few numbers.
//
//	going ──Rest──▶ coming to rest ──▶ still ──▶ carried, or Resume: going
//	                      └── time is over, or it cannot be had: it goes on, and is not carried

// standstill is the wish that a session stands still, or why it does not.
type standstill struct {
	changed chan struct{} // of capacity 1: there is reason to look again
	why     error         // the session is not carried; nil: it stands still, or may yet
}

// look makes whoever waits for the standstill look again. It may be nil.
func (r *standstill) look() {
	if r == nil {
		return
	}
	select {
	case r.changed <- struct{}{}:
	default:
	}
}

// Why a session is not carried.
var (
	errStaysDiscovery = errors.New("it is a discovery session")
	errStaysRoCE      = errors.New("it is over RoCE")
	errStaysTLS       = errors.New("it is over TLS")
	errStaysLevel     = errors.New("it has an error recovery level above 0")
	errStaysEnding    = errors.New("it is ending")
	errStaysConn      = errors.New("a connection is in no state to be carried")
	errStaysBusy      = errors.New("its commands have not ended in time")
)

// Rest brings sessions to a standstill until Resume. Those that do not come to it before ctx
// is done, or cannot, go on.
func (h Handover) Rest(ctx context.Context) {
	var wg sync.WaitGroup
	for _, x := range h.srv.sessionList(nil) {
		wg.Go(func() { x.rest(ctx) })
	}
	wg.Wait()
}

// Resume lets sessions go on as if nothing had happened.
func (h Handover) Resume() {
	for _, x := range h.srv.sessionList(nil) {
		x.resume(nil)
	}
}

// rest brings the session to a standstill, or says in s.still why there is none.
func (s *session) rest(ctx context.Context) {
	s.mu.Lock()
	r := &standstill{changed: make(chan struct{}, 1), why: s.staysLocked()}
	s.still.Store(r)
	if r.why != nil {
		s.mu.Unlock()
		return
	}
	s.order.seq.win.shut = true
	conns := append([]*conn(nil), s.conns.members.conns...)
	s.mu.Unlock()
	for _, c := range conns {
		if !c.park(s.owesNothing, r.look) {
			s.resume(errStaysConn)
			return
		}
	}
	for !s.stands(conns) {
		select {
		case <-r.changed:
		case <-ctx.Done():
			s.resume(errStaysBusy)
			return
		}
		if s.owesNothing() {
			for _, c := range conns {
				c.parkable().Nudge()
			}
		}
	}
	if s.ending() {
		s.resume(errStaysEnding)
	}
}

// parkable is the connection's datamover as one that can be parked; nil: it cannot at the moment.
func (c *conn) parkable() iser.Parkable { return iser.ParkableOf(c.dm) }

// park parks the connection, as iser.Parkable does. One over a stream that has begun to turn into RDMA
// since it was looked at cannot be.
func (c *conn) park(may func() bool, changed func()) bool {
	dm := c.parkable()
	return dm != nil && dm.Park(may, changed)
}

// staysLocked says why the session cannot be carried, whatever it does. The caller holds
// s.mu.
func (s *session) staysLocked() error {
	switch {
	case s.discovery():
		return errStaysDiscovery
	case s.kind == portal.TLS:
		return errStaysTLS
	case s.kind == portal.RoCE:
		return errStaysRoCE
	case s.erl > 0:
		return errStaysLevel
	case s.state != sessionActive || s.doomed:
		return errStaysEnding
	}
	for _, c := range s.conns.members.conns {
		if c.state.get() != connFull || c.parkable() == nil {
			return errStaysConn
		}
	}
	return nil
}

// owesNothing reports whether the initiator owes no data, and no command ahead of others: what
// it sends can wait. A connection asks before it takes the next PDU.
func (s *session) owesNothing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	owes := s.order.seq.n > 0 || s.order.seq.bursts.stalling > 0
	s.cmds.tags.each(func(k *task) {
		owes = owes || k.state == taskCollecting || k.state == taskRunning && k.has(flagWrite) && k.scsi.UnsolicitedLen < k.scsi.OutLen
	})
	return !owes
}

// stands reports whether the session is over, or stands still: nothing of it is under way,
// and it is silent from here on. conns were its connections.
func (s *session) stands(conns []*conn) bool {
	s.mu.Lock()
	q := &s.order.seq
	over := s.state != sessionActive
	quiet := q.n == 0 && len(q.skip) == 0 && !q.delivering && len(q.waits) == 0 && q.win.used == 0 &&
		s.manager.open.Load() == 0 && len(s.conns.members.conns) == len(conns)
	for _, c := range conns {
		quiet = quiet && c.text.ttt == iscsi.ReservedTag && !c.text.busy
	}
	s.mu.Unlock()
	if over || !quiet {
		return over
	}
	for _, c := range conns {
		if c.state.get() != connFull || c.acks.due.Load() || !c.parkable().Still() {
			return false
		}
	}
	return true
}

// resume lets the session go on; why says, until the process goes on as a whole, that it is
// not carried.
func (s *session) resume(why error) {
	s.mu.Lock()
	var r *standstill
	if why != nil {
		r = &standstill{changed: make(chan struct{}, 1), why: why}
	}
	s.still.Store(r)
	w := &s.order.seq.win
	was := w.shut
	w.shut = false
	w.update()
	hidden := was && s.state == sessionActive && w.hidden()
	conns := append([]*conn(nil), s.conns.members.conns...)
	s.mu.Unlock()
	for _, c := range conns {
		if dm := c.parkable(); dm != nil {
			dm.Unpark()
		}
	}
	if hidden {
		s.announceWindow()
	}
}

// resting reports whether the session stands still, or is about to: nobody asks whether its
// initiator is there.
func (s *session) resting() bool {
	r := s.still.Load()
	return r != nil && r.why == nil
}
