package initiator

import "softiser/internal/iscsi"

// ping sends a NOP-Out that wants an answer (RFC 7143 §11.18).
func (c *conn) ping() {
	s := c.s
	t := s.tasks.control(kindPing)
	if t == nil {
		return // control PDUs are outstanding: their deadlines watch the target
	}
	c.pinged = true
	s.pdu.BHS.NewNopOut().SetITT(t.itt())
	t.deadline = 0 // pings have a time-out of their own, see watch.connection
	c.queueImmediate()
}

// nopIn takes the answer to a ping, or answers the target's.
func (c *conn) nopIn(p *iscsi.PDU) {
	s := c.s
	b := &p.BHS
	if itt := b.ITT(); itt != iscsi.ReservedTag {
		c.ackStatus(b)
		t := s.tasks.find(itt)
		if t == nil || t.kind != kindPing {
			c.violation("a NOP-In for the unknown task tag %#08x", itt)
			return
		}
		c.pinged, c.early, c.proved = false, false, true
		s.stats.Pings++
		s.tasks.put(t)
		return
	}
	ttt := b.TTT()
	if ttt == iscsi.ReservedTag {
		return // only news of StatSN and the command window (RFC 7143 §11.19)
	}
	lun := b.LUN()
	q := s.pdu.BHS.NewNopOut()
	q.SetLUN(lun)
	q.SetTTT(ttt)
	c.queueImmediate()
}
