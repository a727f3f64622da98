package iscsi

import (
	"fmt"
	"io"
	"slices"

	"go.uber.org/zap"

	"softiser/internal/iscsi"
)

// membership is about connections that come to a session, leave it, or are lost to it.
type membership struct {
	sess    *session
	members members // guarded by sess.mu
}

// join is the binding of a further connection (RFC 7143 §6.3.1), and of one that
// replaces a connection with the same CID (connection reinstatement, §6.3.4): the
// old one is logged out implicitly. Below error recovery level 2 its tasks end
// before the new one begins.
func (m *membership) join(c *conn, r *iscsi.LoginResult) (iscsi.LoginBinding, error) {
	s := m.sess
	c.params = s.params
	c.params.HeaderDigest, c.params.DataDigest = r.Params.HeaderDigest, r.Params.DataDigest
	c.params.MaxRecvDataSegmentLength = r.Params.MaxRecvDataSegmentLength
	c.params.MaxXmitDataSegmentLength = r.Params.MaxXmitDataSegmentLength
	for {
		s.mu.Lock()
		if s.left || s.endingLocked() {
			s.mu.Unlock()
			return iscsi.LoginBinding{}, iscsi.Refuse(iscsi.LoginNoSession, "session %#04x has just ended; log in with TSIH 0", s.tsih)
		}
		old := m.members.byCID(r.CID)
		if old == nil {
			break
		}
		old.replaced = true
		old.recovering = s.erl == 2
		s.mu.Unlock()
		s.srv.stats.connReinstated.Add(1)
		s.srv.limits.sessions.Info(old.log, "connection reinstatement: the old connection ends", zap.Uint16("cid", r.CID), zap.Stringer("new_connection", c.remote))
		old.close(errConnReinstated)
		if err := m.waitReplaced(c, old); err != nil {
			m.orphaned(err)
			return iscsi.LoginBinding{}, err
		}
	}
	defer s.mu.Unlock()
	if l := m.members.byLostCID(r.CID); l != nil {
		l.loggedOut(s.retain()) // the login is an implicit logout of the lost connection
	}
	most := int(s.params.MaxConnections)
	if s.erl == 2 {
		most++ // one more, so that a lost connection can be logged out (§6.3.4)
	}
	if n := m.members.count(); n >= most {
		return iscsi.LoginBinding{}, iscsi.Refuse(iscsi.LoginTooManyConnections, "session %#04x has %d connections, and MaxConnections is %d", s.tsih, n, s.params.MaxConnections)
	}
	c.sess, c.cid = s, r.CID
	m.members.conns = append(m.members.conns, c)
	return iscsi.LoginBinding{TSIH: s.tsih, ExpCmdSN: s.order.seq.win.ExpCmdSN, MaxCmdSN: s.order.seq.win.MaxCmdSN}, nil
}

// waitReplaced waits until a replaced connection is gone and its tasks are over.
func (m *membership) waitReplaced(c, old *conn) error {
	s := m.sess
	deadline := afterLogin(s.srv)
	defer deadline.Stop()
	wait := []<-chan struct{}{old.ended}
	if s.erl < 2 { // at level 2 its tasks may be reassigned
		wait = append(wait, s.cmds.end(old))
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

// end aborts the tasks that are allegiant to c and drops its commands that
// wait for their turn; the channel is closed when all is over.
func (m *commands) end(c *conn) <-chan struct{} {
	s := m.sess
	over := make(chan struct{})
	f := newFence(func() { close(over) })
	s.mu.Lock()
	calls := m.abandonLocked(c, f)
	s.mu.Unlock()
	calls.run()
	f.release()
	s.order.deliverHeld(nil)
	return over
}

// abandonLocked begins to abort everything that is allegiant to c, nil meaning
// every connection. What has been read of it and is not a task yet will be none: it would
// be carried out behind the initiator's back, who may have sent it again by then. So would a
// task management function that waits for its turn: it would abort what was sent after the
// connection had been replaced, and its answer reach nobody. The
// caller holds sess.mu, runs what is returned, releases f and then delivers what is held.
func (m *commands) abandonLocked(c *conn, f *fence) abortCalls {
	if c != nil {
		c.abandoned = true
	} else {
		for _, x := range m.sess.conns.members.conns {
			x.abandoned = true
		}
	}
	var doomed []*task
	m.tags.each(func(k *task) {
		if c == nil || k.conn() == c {
			doomed = append(doomed, k)
		}
	})
	calls := m.abortLocked(doomed, f)
	m.sess.manager.open.Add(-int32(m.sess.order.seq.dismiss(c)))
	for _, h := range m.sess.order.seq.drop(c) {
		// They count as received (RFC 7143 §11.14: a connection that is closed takes
		// its tasks along).
		m.sess.order.seq.skipOver(h.p.BHS.CmdSN())
		calls.held = append(calls.held, h)
	}
	return calls
}

// leave takes note of the end of a connection; was is the state that it was in.
func (m *membership) leave(c *conn, err error, was connState) {
	s := m.sess
	p, other := m.part(c, was)
	switch p {
	case sessionGoesOn:
		if was == connLoggedOut {
			s.srv.limits.sessions.Info(c.log, "connection closed", zap.Uint16("cid", c.cid))
		}
	case tasksWait:
		s.srv.stats.connLost.Add(1)
		s.srv.limits.sessions.Info(c.log, "connection lost; its tasks wait to be reassigned", zap.Uint16("cid", c.cid), zap.NamedError("reason", err))
		if other != nil {
			other.out.connectionDropped(c.cid)
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
// counts as ending from here on (see ending), though its tasks may still run. other is a
// connection that was there when c was lost, to be told of it: one that comes later knows.
func (m *membership) part(c *conn, was connState) (p parting, other *conn) {
	s := m.sess
	s.mu.Lock()
	m.members.remove(c)
	keep := s.erl == 2 && s.state == sessionActive && !s.doomed && !s.srv.draining() &&
		(was != connLoggedOut || c.recovering)
	var held []heldPDU
	var oldest *conn
	if keep {
		oldest = m.members.lose(c, int(s.params.MaxConnections), s.retain(), m.giveUp)
		held = s.order.seq.drop(c) // the initiator sends these commands again
		s.manager.open.Add(-int32(s.order.seq.dismiss(c)))
	}
	alone := was == connLoggedOut && len(m.members.conns) > 0
	p = sessionEnds
	switch {
	case keep:
		p = tasksWait
		if !c.recovering {
			other = m.members.speaker()
		}
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
		s.cmds.end(oldest)
	}
	return p, other
}

// giveUp ends the tasks that nobody has asked for in time, and the session with them
// if it has no connection any more.
func (m *membership) giveUp(l *lostConn) {
	s := m.sess
	s.mu.Lock()
	if s.state != sessionActive || !slices.Contains(m.members.lost, l) {
		s.mu.Unlock()
		return
	}
	m.members.forget(l)
	last := m.members.none()
	s.mu.Unlock()
	if last {
		s.shut(fmt.Errorf("no connection has replaced the lost ones within %v (Time2Wait and Time2Retain)", s.retain()))
		return
	}
	s.cmds.end(l.c)
}
