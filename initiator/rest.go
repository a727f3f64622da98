package initiator

import (
	"context"
	"encoding/json"
	"time"

	"softiser/internal/iscsitcp"
	"softiser/internal/iser"
)

// A session over plain TCP, or over iSER and iWARP, goes to another process while it is at
// rest: no command is outstanding, none is sent, and its connection has stopped in front of a
// PDU. Then it is a few numbers and a socket. The other process goes on with it by
// Config.Carried, and looks at the LUN over it as over any session.
//
//	active ──Rest──▶ nothing is sent, what is outstanding ends ──▶ parked ──▶ Carry, or Resume: active

// restLook is how often Rest looks.
const restLook = 200 * time.Microsecond

// Rest brings the LUN's sessions to rest until Resume. With an error, which is also how it ends
// where one of them cannot be carried, they go on. The caller has begun nothing that has not
// ended.
func (l *LUN) Rest(ctx context.Context) error {
	for i, s := range l.paths {
		if err := s.restUntil(ctx); err != nil {
			for _, before := range l.paths[:i] {
				before.resume()
			}
			return err
		}
	}
	return nil
}

// Resume lets the sessions go on as if nothing had happened.
func (l *LUN) Resume() {
	for _, s := range l.paths {
		s.resume()
	}
}

// Carry returns the sessions, with descriptors that are the caller's. Preconditions: Rest.
func (l *LUN) Carry() ([]*CarriedSession, error) {
	var all []*CarriedSession
	for _, s := range l.paths {
		k, err := s.carry()
		if err != nil {
			for _, k := range all {
				k.Close()
			}
			return nil, err
		}
		all = append(all, k)
	}
	return all, nil
}

// ISID is the session's, which recovery logs in with.
func (s *Session) ISID() [6]byte { return s.cfg.ISID }

// restUntil is Rest.
func (s *Session) restUntil(ctx context.Context) error {
	s.mu.Lock()
	c, dm := s.conn, iser.Parkable(nil)
	if c != nil && s.cfg.TLS == nil {
		dm = c.parkable()
	}
	if dm == nil || s.state != StateActive || c.state != connFlowing || s.resting {
		s.mu.Unlock()
		return errNoRest
	}
	s.resting = true
	s.mu.Unlock()
	ok := dm.Park(s.idle, func() {})
	for ok && !(s.idle() && dm.Still()) {
		s.mu.Lock()
		ok = s.conn == c && c.state == connFlowing && ctx.Err() == nil
		s.mu.Unlock()
		dm.Nudge()
		time.Sleep(restLook)
	}
	if !ok {
		s.resume()
		return errNoRest
	}
	return nil
}

// parkable is the connection's datamover as one that can be parked; nil: it cannot at the moment.
func (c *conn) parkable() iser.Parkable { return iser.ParkableOf(c.dm) }

// idle reports whether nothing is outstanding or waits to be sent.
func (s *Session) idle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.tasks.slots {
		if s.tasks.slots[i].state != taskFree {
			return false
		}
	}
	return s.units.held == 0 && s.wait.queue.Empty() && s.wait.ctlQueue.Empty()
}

// resume is Resume.
func (s *Session) resume() {
	s.mu.Lock()
	s.resting = false
	c := s.conn
	if c != nil {
		if dm := c.parkable(); dm != nil {
			dm.Unpark()
		}
		s.clock.now = s.clock.elapsed()
		c.quiet = s.clock.now // nobody was listening
	}
	s.pump()
	s.unlock()
	if c != nil {
		c.kick()
	}
}

// carry is Carry.
func (s *Session) carry() (*CarriedSession, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.conn
	if !s.resting || c == nil || c.state != connFlowing {
		return nil, errNoRest
	}
	k := &CarriedSession{FD: -1}
	x := carriedState{
		Target: s.cfg.TargetName, Initiator: s.cfg.InitiatorName, ISID: s.cfg.ISID, TSIH: s.last.tsih, User: s.last.user, Portal: s.portal,
		CmdSN: s.win.CmdSN, ExpCmdSN: s.win.ExpCmdSN, MaxCmdSN: s.win.MaxCmdSN, StatSN: c.expStatSN, Params: s.last.params,
	}
	var err error
	switch dm := c.parkable().(type) {
	case *iscsitcp.Conn:
		x.Stream, k.FD, err = dm.Carry()
	case *iser.Parking:
		x.RDMA = new(iser.Carried)
		*x.RDMA, k.FD, err = dm.Carry()
	}
	if err == nil {
		k.State, err = json.Marshal(&x)
	}
	if err != nil {
		k.Close()
		return nil, err
	}
	return k, nil
}
