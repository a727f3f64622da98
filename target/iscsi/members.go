package iscsi

import (
	"io"
	"slices"

	"go.uber.org/zap"

	"softiser/internal/iscsi"
)

// This file is about the connections of a session (RFC 7143 §6.3, MC/S).

// pastConns adds up what connections had counted that have left the session.
type pastConns struct {
	in, out, copied, rejects uint64
	dm                       iscsi.DatamoverStats
}

func (p *pastConns) add(c *conn) {
	n := &c.counters
	p.in += n.bytesIn.Load()
	p.out += n.bytesOut.Load()
	p.copied += n.bytesCopied.Load()
	p.rejects += n.rejects.Load()
	d := c.dm.Stats()
	p.dm.PDUsIn += d.PDUsIn
	p.dm.PDUsOut += d.PDUsOut
	p.dm.PayloadIn += d.PayloadIn
	p.dm.PayloadOut += d.PayloadOut
	p.dm.PayloadCopied += d.PayloadCopied
	p.dm.ReceiveCalls += d.ReceiveCalls
	p.dm.SendCalls += d.SendCalls
	p.dm.OutstandingTransfers += d.OutstandingTransfers
}

// connList returns the connections of the session.
func (s *session) connList() []*conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.conns)
}

// byCID finds a connection of the session that has not been logged out. The caller
// holds s.mu.
func (s *session) byCID(cid uint16) *conn {
	for _, c := range s.conns {
		if c.cid == cid && c.state.get() != connLoggedOut {
			return c
		}
	}
	return nil
}

// members counts the connections that have not been logged out. The caller holds
// s.mu.
func (s *session) members() int {
	n := 0
	for _, c := range s.conns {
		if c.state.get() != connLoggedOut {
			n++
		}
	}
	return n
}

// speaker returns a connection in full feature phase, on which something that
// concerns the whole session can be said; nil when there is none.
func (s *session) speaker() *conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.conns {
		if c.state.get() == connFull {
			return c
		}
	}
	return nil
}

// shut closes every connection at once and ends the session.
func (s *session) shut(cause error) {
	s.mu.Lock()
	s.doomed = true
	s.mu.Unlock()
	for _, c := range s.connList() {
		c.close(cause)
	}
	s.end(cause)
}

// dismiss ends the session like shut, but tells the initiator first: on each of its
// connections, because those keep no order among each other and the end of one may
// be all that is noticed otherwise. What is queued still goes out, within hangUpTime.
func (s *session) dismiss(cause error) {
	s.mu.Lock()
	s.doomed = true
	s.mu.Unlock()
	for _, c := range s.connList() {
		c.sessionDropped()
		c.hangUp()
	}
	s.end(cause)
}

// join is the binding of a further connection (RFC 7143 §6.3.1), and of one that
// replaces a connection with the same CID (connection reinstatement, §6.3.4): the
// old one is logged out implicitly. Below error recovery level 2 its tasks end
// before the new one begins.
func (s *session) join(c *conn, r *iscsi.LoginResult) (iscsi.LoginBinding, error) {
	c.params = s.params
	c.params.HeaderDigest, c.params.DataDigest = r.Params.HeaderDigest, r.Params.DataDigest
	c.params.MaxRecvDataSegmentLength = r.Params.MaxRecvDataSegmentLength
	c.params.MaxXmitDataSegmentLength = r.Params.MaxXmitDataSegmentLength
	for {
		s.mu.Lock()
		if s.doomed || s.state != sessionActive {
			s.mu.Unlock()
			return iscsi.LoginBinding{}, iscsi.Refuse(iscsi.LoginNoSession, "session %#04x has just ended; log in with TSIH 0", s.tsih)
		}
		old := s.byCID(r.CID)
		if old == nil {
			break
		}
		old.replaced = true
		old.recovering = s.erl == 2
		s.mu.Unlock()
		s.srv.limits.sessions.Info(old.log, "connection reinstatement: the old connection ends", zap.Uint16("cid", r.CID), zap.Stringer("new_connection", c.remote))
		old.close(errConnReinstated)
		if err := s.waitReplaced(c, old); err != nil {
			s.orphaned(err)
			return iscsi.LoginBinding{}, err
		}
	}
	defer s.mu.Unlock()
	if l := s.byLostCID(r.CID); l != nil {
		s.logOutLocked(l) // implicitly
	}
	most := int(s.params.MaxConnections)
	if s.erl == 2 {
		most++ // for the logout of one that is lost (§6.3.4)
	}
	if n := s.members(); n >= most {
		return iscsi.LoginBinding{}, iscsi.Refuse(iscsi.LoginTooManyConnections, "session %#04x has %d connections, and MaxConnections is %d", s.tsih, n, s.params.MaxConnections)
	}
	c.sess, c.cid = s, r.CID
	s.conns = append(s.conns, c)
	return iscsi.LoginBinding{TSIH: s.tsih, ExpCmdSN: s.seq.win.ExpCmdSN, MaxCmdSN: s.seq.win.MaxCmdSN}, nil
}

// waitReplaced waits until a replaced connection is gone and its tasks are over.
func (s *session) waitReplaced(c, old *conn) error {
	deadline := afterLogin(s.srv)
	defer deadline.Stop()
	wait := []<-chan struct{}{old.ended}
	if s.erl < 2 { // at level 2 they may be reassigned
		wait = append(wait, s.endTasks(old))
	}
	for _, gone := range wait {
		select {
		case <-gone:
		case <-c.ended:
			return io.ErrUnexpectedEOF
		case <-deadline.C:
			return iscsi.Refuse(iscsi.LoginUnavailable, "tasks of the old connection %d are still running", old.cid)
		}
	}
	return nil
}

// endTasks aborts the tasks that are allegiant to c and drops its commands that
// wait for their turn; the channel is closed when all is over.
func (s *session) endTasks(c *conn) <-chan struct{} {
	over := make(chan struct{})
	f := newFence(func() { close(over) })
	s.mu.Lock()
	calls := s.abandonLocked(c, f)
	s.mu.Unlock()
	calls.run()
	f.release()
	s.deliverHeld(nil)
	return over
}

// abandonLocked begins to abort everything that is allegiant to c, nil meaning
// every connection. The caller holds s.mu, runs what is returned, releases f and
// then delivers what is held.
func (s *session) abandonLocked(c *conn, f *fence) abortCalls {
	var doomed []*task
	s.tags.each(func(k *task) {
		if c == nil || k.conn() == c {
			doomed = append(doomed, k)
		}
	})
	calls := s.abortLocked(doomed, f)
	for _, h := range s.seq.drop(c) {
		// They count as received (RFC 7143 §11.14: a connection that is closed takes
		// its tasks along).
		s.seq.skipOver(h.p.BHS.CmdSN())
		calls.held = append(calls.held, h)
	}
	return calls
}

// orphaned ends a session whose only connection was to be replaced by one that
// has failed.
func (s *session) orphaned(err error) {
	s.mu.Lock()
	none := len(s.conns) == 0
	s.mu.Unlock()
	if none {
		s.end(err)
	}
}

// leave takes note of the end of a connection; was is the state that it was in.
func (s *session) leave(c *conn, err error, was connState) {
	switch s.part(c, was) {
	case sessionGoesOn:
		if was == connLoggedOut {
			s.srv.limits.sessions.Info(c.log, "connection closed", zap.Uint16("cid", c.cid))
		}
	case tasksWait:
		s.srv.limits.sessions.Info(c.log, "connection lost; its tasks wait to be reassigned", zap.Uint16("cid", c.cid), zap.NamedError("reason", err))
		if other := s.speaker(); other != nil && !c.recovering {
			other.connectionDropped(c.cid)
		}
	case sessionEnds:
		s.shut(err)
	}
}

// parting is what the end of a connection means for its session.
type parting uint8

const (
	sessionEnds   parting = iota
	sessionGoesOn         // the connection has logged out, or another one takes its place
	tasksWait             // for another connection, at error recovery level 2
)

// part takes a connection out of the session. When that is the session's end, it
// counts as ending from here on (see ending), though its tasks may still run.
func (s *session) part(c *conn, was connState) parting {
	s.mu.Lock()
	if i := slices.Index(s.conns, c); i >= 0 {
		s.conns = slices.Delete(s.conns, i, i+1)
		s.past.add(c)
	}
	keep := s.erl == 2 && s.state == sessionActive && !s.doomed && !s.srv.draining() &&
		(was != connLoggedOut || c.recovering)
	var held []heldPDU
	var oldest *conn
	if keep {
		oldest = s.loseLocked(c)
		held = s.seq.drop(c) // the initiator sends them again
	}
	alone := was == connLoggedOut && len(s.conns) > 0
	p := sessionEnds
	switch {
	case keep:
		p = tasksWait
	case alone, c.replaced:
		p = sessionGoesOn
	default:
		s.doomed = true
	}
	s.mu.Unlock()
	for _, h := range held {
		h.release()
	}
	if !keep {
		c.discardKept()
	}
	if oldest != nil {
		s.endTasks(oldest)
	}
	return p
}
