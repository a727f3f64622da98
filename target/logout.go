package target

import (
	"go.uber.org/zap"

	"softiser/internal/iscsi"
)

// logout takes a Logout Request (RFC 7143 §11.14). Tasks that still run are
// aborted first; the response is the last PDU of the connection.
func (s *session) logout(c *conn, p *iscsi.PDU) {
	req := p.BHS.LogoutRequest()
	itt, reason, cid := req.ITT(), req.Reason(), req.CID()
	p.Release()
	response := uint8(iscsi.LogoutClosed)
	switch {
	case reason == iscsi.LogoutRecovery:
		response = iscsi.LogoutNoRecovery // error recovery level 0
	case reason == iscsi.LogoutConnection && cid != c.cid:
		response = iscsi.LogoutCIDNotFound
	case reason > iscsi.LogoutRecovery:
		response = iscsi.LogoutCleanupFailed
	}
	if response != iscsi.LogoutClosed {
		c.logoutResponse(itt, response)
		return
	}
	s.mu.Lock()
	var doomed []*task
	s.tags.each(func(k *task) { doomed = append(doomed, k) })
	f := newFence(func() {
		// What ends with the nexus (RESERVE, prevented removal) is gone before the
		// initiator hears that the session is: its next one must not run into it.
		s.node.endNexus(s.nexus)
		c.logoutResponse(itt, response)
		c.dm.Push()
		if c.state.advance(connLoggedOut) {
			c.dm.Terminate(nil)
		}
	})
	calls := s.abortLocked(doomed, f)
	s.mu.Unlock()
	s.log().Info("logout", zap.Int("aborted_tasks", len(doomed)))
	calls.run()
	f.release()
}

func (c *conn) logoutResponse(itt uint32, response uint8) {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := &c.out
	r := out.BHS.NewLogoutResponse(response)
	r.SetITT(itt)
	r.SetTimes(uint16(c.sess.params.DefaultTime2Wait), uint16(c.sess.params.DefaultTime2Retain))
	out.Data = nil
	c.sendLocked(out, takeStatSN)
}
