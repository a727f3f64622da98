package target

import (
	"go.uber.org/zap"

	"softiser/internal/iscsi"
)

// logout takes a Logout Request (RFC 7143 §11.14): of the session, or of one of
// its connections, which may be another one than the request came on. Tasks that
// still run on what is closed are aborted first; when that is c itself, the
// response is its last PDU.
func (s *session) logout(c *conn, p *iscsi.PDU) {
	req := p.BHS.LogoutRequest()
	itt, reason, cid := req.ITT(), req.Reason(), req.CID()
	p.Release()
	s.mu.Lock()
	which := c // the connection that is closed; nil: all
	response := uint8(iscsi.LogoutClosed)
	switch reason {
	case iscsi.LogoutSession:
		which = nil
	case iscsi.LogoutConnection:
		if which = s.byCID(cid); which == nil {
			response = iscsi.LogoutCIDNotFound
		} else if len(s.conns) == 1 {
			which = nil // the last one takes the session along
		}
	case iscsi.LogoutRecovery:
		response = iscsi.LogoutNoRecovery // error recovery level 0
	default:
		response = iscsi.LogoutCleanupFailed
	}
	if response != iscsi.LogoutClosed {
		s.mu.Unlock()
		c.logoutResponse(itt, response)
		return
	}
	f := newFence(func() {
		if which == nil {
			// What ends with the nexus (RESERVE, prevented removal) is gone before the
			// initiator hears that the session is: its next one must not run into it.
			s.node.endNexus(s.nexus)
		}
		if which != nil && which != c {
			which.hangUp()
		}
		c.logoutResponse(itt, response)
		c.dm.Push()
		switch which {
		case nil:
			s.hangUp()
		case c:
			c.hangUp()
		}
	})
	calls := s.abandonLocked(which, f)
	s.mu.Unlock()
	s.log().Info("logout", zap.Stringer("reason", reason), zap.Uint16("cid", cid), zap.Int("aborted_tasks", calls.count()))
	calls.run()
	f.release()
	if which != nil {
		s.deliverHeld(c)
	}
}

// hangUp closes a connection that has been logged out, behind what is queued.
func (c *conn) hangUp() {
	if c.state.advance(connLoggedOut) {
		c.dm.Terminate(nil)
	}
}

// hangUp closes all connections of a session that has been logged out.
func (s *session) hangUp() {
	for _, c := range s.connList() {
		c.hangUp()
	}
}

func (c *conn) logoutResponse(itt uint32, response uint8) {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := &c.out
	r := out.BHS.NewLogoutResponse(response)
	r.SetITT(itt)
	r.SetTimes(uint16(c.params.DefaultTime2Wait), uint16(c.params.DefaultTime2Retain))
	out.Data = nil
	c.sendLocked(out, takeStatSN)
}
