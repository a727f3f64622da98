package iscsi

import (
	"go.uber.org/zap"

	"softiser/internal/iscsi"
)

// logout takes a Logout Request (RFC 7143 §11.14): of the session, or of one of
// its connections, which may be another one than the request came on. Tasks that
// still run on what is closed are aborted first; when that is c itself, the
// response is its last PDU.
func (m *membership) logout(c *conn, p *iscsi.PDU) {
	s := m.sess
	req := p.BHS.LogoutRequest()
	itt, reason, cid := req.ITT(), req.Reason(), req.CID()
	p.Release()
	if reason == iscsi.LogoutRecovery && s.erl == 2 {
		m.logoutRecovery(c, itt, cid)
		return
	}
	s.mu.Lock()
	which, response := m.leavesLocked(reason, cid)
	if response != iscsi.LogoutClosed {
		s.mu.Unlock()
		c.out.logoutResponse(itt, response)
		return
	}
	f := newFence(func() {
		switch which {
		case nil:
			// What ends with the nexus (RESERVE, prevented removal) is gone before the
			// initiator hears that the session is: its next one must not run into it.
			s.node.endNexus(s.nexus)
		case c:
		default:
			which.hangUp()
		}
		c.out.logoutResponse(itt, response)
		c.dm.Push()
		switch which {
		case nil:
			m.hangUp()
		case c:
			c.hangUp()
		}
	})
	if which == nil {
		s.left = true
	}
	calls := s.cmds.abandonLocked(which, f)
	s.mu.Unlock()
	s.srv.limits.sessions.Info(s.log(), "logout", zap.Stringer("reason", reason), zap.Uint16("cid", cid), zap.Int("aborted_tasks", calls.count()))
	calls.run()
	f.release()
	if which != nil {
		s.order.deliverHeld(c)
	}
}

// leavesLocked says which connection a Logout Request closes, nil for all of the session, or with which
// response it closes none. The caller holds sess.mu.
func (m *membership) leavesLocked(reason iscsi.LogoutReason, cid uint16) (which *conn, response uint8) {
	switch reason {
	case iscsi.LogoutSession:
		return nil, iscsi.LogoutClosed
	case iscsi.LogoutConnection:
		if which = m.members.byCID(cid); which != nil {
			if m.members.count() == 1 {
				which = nil // the last one takes the session along
			}
			return which, iscsi.LogoutClosed
		}
		if l := m.members.byLostCID(cid); l != nil {
			m.members.forget(l)
			return l.c, iscsi.LogoutClosed
		}
		return nil, iscsi.LogoutCIDNotFound
	case iscsi.LogoutRecovery:
		return nil, iscsi.LogoutNoRecovery
	}
	return nil, iscsi.LogoutCleanupFailed
}

// logoutRecovery removes a connection whose tasks are to be reassigned (reason 2). It
// may be lost already, still there, or the one that asks. The response says that
// nothing more comes from it.
func (m *membership) logoutRecovery(c *conn, itt uint32, cid uint16) {
	s := m.sess
	s.mu.Lock()
	which := m.members.byCID(cid)
	l := m.members.byLostCID(cid)
	if which != nil {
		again := which.recovering
		which.recovering = true
		if again {
			// It is on its way out, and the first request waits for that.
			s.mu.Unlock()
			c.out.logoutResponse(itt, iscsi.LogoutCleanupFailed)
			return
		}
	} else if l != nil {
		l.loggedOut(s.retain())
	}
	s.mu.Unlock()
	switch {
	case which == nil && l == nil:
		c.out.logoutResponse(itt, iscsi.LogoutCIDNotFound)
	case which == nil:
		c.out.logoutResponse(itt, iscsi.LogoutClosed)
	case which == c:
		c.out.logoutResponse(itt, iscsi.LogoutClosed)
		c.hangUp()
	default:
		which.close(errLoggedOut)
		go func() {
			<-which.ended
			c.out.logoutResponse(itt, iscsi.LogoutClosed)
			c.dm.Push()
		}()
	}
}
