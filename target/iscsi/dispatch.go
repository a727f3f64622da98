package iscsi

import "softiser/internal/iscsi"

// service is what becomes of the PDUs of one opcode in full feature phase.
type service struct {
	take      func(*session, *conn, *iscsi.PDU) // releases the PDU; nil: it is rejected
	reject    iscsi.RejectReason
	discovery bool // discovery sessions know it as well (RFC 7143 §4.3)
	place     bool // it takes a place in the command window, besides its number
	loose     bool // it has no number, and is taken as it comes
}

// services has a row for each opcode (RFC 7143 §11.2.1.2).
var services [1 << 6]service

func init() { // as an initial value it would refer to itself: what is held is delivered from inside
	for op := range services {
		services[op].reject = iscsi.RejectUnsupported
		if o := iscsi.Opcode(op); o.Known() {
			services[op].reject = iscsi.RejectProtocol // the target's own, and Login Requests
		}
	}
	services[iscsi.OpNopOut] = service{take: func(_ *session, c *conn, p *iscsi.PDU) { c.nopOut(p) }}
	services[iscsi.OpSCSICommand] = service{take: (*session).command, place: true}
	services[iscsi.OpTaskRequest] = service{take: (*session).taskRequest}
	services[iscsi.OpTextRequest] = service{take: (*session).textRequest, discovery: true}
	services[iscsi.OpDataOut] = service{take: (*session).dataOut, loose: true}
	services[iscsi.OpLogoutReq] = service{take: (*session).logout, discovery: true}
	services[iscsi.OpSNACK].reject = iscsi.RejectSNACK // error recovery level 0; above, the datamover serves it
}

// fullFeature takes a PDU of the full feature phase.
func (c *conn) fullFeature(p *iscsi.PDU) {
	c.quiet.Store(false)
	s := c.sess
	op := p.BHS.Opcode()
	v := &services[op]
	switch {
	case p.Bad != nil:
		s.damaged(c, p)
	case v.take == nil:
		c.reject(p, v.reject)
	case v.loose && s.discovery():
		c.reject(p, iscsi.RejectProtocol)
	case v.loose:
		v.take(s, c, p)
	case p.BHS.Immediate():
		s.deliver(c, p)
	case s.erl > 0 && v.place && s.checkCommand(p) != 0:
		// Its CmdSN does not count as received (RFC 7143 §7.3): the initiator fills
		// the gap. At level 0, where nothing is sent again, it does count.
		c.reject(p, s.checkCommand(p))
	default:
		s.inOrder(c, p)
	}
}

// deliver hands a PDU whose turn it is to the code for its opcode.
func (s *session) deliver(c *conn, p *iscsi.PDU) {
	v := &services[p.BHS.Opcode()]
	if !v.place && !p.BHS.Immediate() {
		// It took a number but no place in the window.
		s.mu.Lock()
		s.openWindow()
		s.mu.Unlock()
	}
	switch {
	case p.NoRoom && !v.place: // a command answers for itself
		c.reject(p, iscsi.RejectNoResources)
	case s.discovery() && !v.discovery:
		c.reject(p, iscsi.RejectProtocol)
	default:
		v.take(s, c, p)
	}
}
