package iscsi

import "softiser/internal/iscsi"

// damaged takes a PDU that the datamover found to break the protocol without
// harming the stream: a data digest error, Data-Out that nothing asked for. It
// is rejected; the command that it belongs to, or is, cannot be carried out.
func (s *session) damaged(c *conn, p *iscsi.PDU) {
	bad, op, itt, final := p.Bad, p.BHS.Opcode(), p.BHS.ITT(), p.BHS.Final()
	if op == iscsi.OpSNACK && bad.Reason == iscsi.RejectSNACK {
		s.mu.Lock()
		if k := s.cmds.tags.find(itt); k != nil {
			k.flags |= flagSNACK // its response says that data could not be sent again
		}
		s.mu.Unlock()
	}
	if s.erl == 0 && op.Info().CmdSN && !p.BHS.Immediate() {
		// Above level 0 the initiator sends it again (RFC 7143 §7.3). Here its number is used up, or everything behind it would wait for it.
		s.mu.Lock()
		ok := s.order.seq.win.Accepts(p.BHS.CmdSN())
		if ok {
			s.order.seq.skipOver(p.BHS.CmdSN())
		}
		s.mu.Unlock()
		if ok {
			defer s.order.deliverHeld(c)
		}
	}
	c.out.reject(p, bad.Reason)
	if bad.Fatal {
		c.close(bad)
		return
	}
	if op != iscsi.OpDataOut || s.discovery() {
		return
	}
	s.mu.Lock()
	k := s.cmds.tags.find(itt)
	if k == nil || k.state != taskCollecting {
		s.mu.Unlock()
		return
	}
	next := burstLost // the rest of it is dropped as it comes
	if s.erl > 0 {
		k.unsol.hole = true
		if next = burstGoesOn; final {
			next = burstRuns
		}
	}
	stall := next >= burstRuns && k.collectedLocked(next)
	s.mu.Unlock()
	if next >= burstRuns {
		k.endBurst(c, next, stall)
	}
}
