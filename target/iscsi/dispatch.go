package iscsi

import "softiser/internal/iscsi"

// The table is filled by init: in its initial value it would refer to itself, because the
// delivery of held PDUs looks it up again.
func init() {
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
		take:       func(s *session, c *conn, p *iscsi.PDU) { s.order.dataOut(c, p) },
		takeHeld:   func(s *session, c *conn, p *iscsi.PDU) { s.cmds.takeDataOut(c, p) },
		unnumbered: true,
	}
	services[iscsi.OpLogoutReq] = service{take: func(s *session, c *conn, p *iscsi.PDU) { s.conns.logout(c, p) }, discovery: true}
	services[iscsi.OpSNACK].reject = iscsi.RejectSNACK // at error recovery level 0; above it, the datamover serves SNACKs
}

// fullFeature handles a PDU of the full feature phase.
func (c *conn) fullFeature(p *iscsi.PDU) {
	if c.quiet.Load() { // a load is cheaper than a store for every PDU
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
	case v.unnumbered && s.discovery():
		c.out.reject(p, iscsi.RejectProtocol)
	case v.unnumbered:
		v.take(s, c, p)
	case p.BHS.Immediate():
		s.order.deliver(c, p)
	case s.erl > 0 && v.place && s.cmds.check(p) != 0:
		// The CmdSN of a rejected command does not count as received (RFC 7143 §7.3): the
		// initiator fills the gap. At level 0, where nothing is sent again, it does count.
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

// take hands a PDU to the phase that the connection is in: login, or full feature.
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
