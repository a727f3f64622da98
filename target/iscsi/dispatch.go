package iscsi

import "softiser/internal/iscsi"

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
	services[iscsi.OpDataOut] = service{take: (*session).dataOut, behind: (*session).takeDataOut, loose: true}
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

// ControlNotify implements iscsi.Upper.
func (c *conn) ControlNotify(p *iscsi.PDU) {
	c.heard.Add(1)
	switch c.state.get() {
	case connFull:
		if c.acksDue.Load() {
			c.acknowledged(p.BHS.ExpStatSN())
		}
		c.fullFeature(p)
	case connLogin:
		c.loginPDU(p)
	default:
		p.Release()
	}
}
