package iscsi

import "softiser/internal/iscsi"

func init() { // as an initial value it would refer to itself: what is held is delivered from inside
	for op := range services {
		services[op].reject = iscsi.RejectUnsupported
		if o := iscsi.Opcode(op); o.Known() {
			services[op].reject = iscsi.RejectProtocol // the target's own, and Login Requests
		}
	}
	services[iscsi.OpNopOut] = service{take: func(_ *session, c *conn, p *iscsi.PDU) { c.beat.nopOut(p) }}
	services[iscsi.OpSCSICommand] = service{take: func(s *session, c *conn, p *iscsi.PDU) { s.cmds.take(c, p) }, place: true}
	services[iscsi.OpTaskRequest] = service{take: func(s *session, c *conn, p *iscsi.PDU) { s.manager.take(c, p) }}
	services[iscsi.OpTextRequest] = service{take: func(_ *session, c *conn, p *iscsi.PDU) { c.text.take(p) }, discovery: true}
	services[iscsi.OpDataOut] = service{
		take:   func(s *session, c *conn, p *iscsi.PDU) { s.order.dataOut(c, p) },
		behind: func(s *session, c *conn, p *iscsi.PDU) { s.cmds.takeDataOut(c, p) },
		loose:  true,
	}
	services[iscsi.OpLogoutReq] = service{take: func(s *session, c *conn, p *iscsi.PDU) { s.conns.logout(c, p) }, discovery: true}
	services[iscsi.OpSNACK].reject = iscsi.RejectSNACK // error recovery level 0; above, the datamover serves it
}

// fullFeature takes a PDU of the full feature phase.
func (c *conn) fullFeature(p *iscsi.PDU) {
	if c.quiet.Load() { // a store costs more than to look
		c.quiet.Store(false)
	}
	s := c.sess
	op := p.BHS.Opcode()
	v := &services[op]
	switch {
	case p.Bad != nil:
		s.damaged(c, p)
	case v.take == nil:
		c.out.reject(p, v.reject)
	case v.loose && s.discovery():
		c.out.reject(p, iscsi.RejectProtocol)
	case v.loose:
		v.take(s, c, p)
	case p.BHS.Immediate():
		s.order.deliver(c, p)
	case s.erl > 0 && v.place && s.cmds.check(p) != 0:
		// Its CmdSN does not count as received (RFC 7143 §7.3): the initiator fills
		// the gap. At level 0, where nothing is sent again, it does count.
		c.out.reject(p, s.cmds.check(p))
	default:
		s.order.arrived(c, p)
	}
}

// ControlNotify implements iscsi.Upper.
func (c *conn) ControlNotify(p *iscsi.PDU) {
	c.heard.Add(1)
	for p != nil {
		next := p.Unlink()
		c.take(p)
		p = next
	}
}

// take takes a PDU as the state of the connection has it.
func (c *conn) take(p *iscsi.PDU) {
	switch c.state.get() {
	case connFull:
		if c.acks.due.Load() {
			c.acks.acknowledged(p.BHS.ExpStatSN())
		}
		c.fullFeature(p)
	case connLogin:
		c.login.take(p)
	default:
		p.Release()
	}
}
