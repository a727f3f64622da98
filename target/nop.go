package target

import (
	"time"

	"softiser/internal/iscsi"
)

// pingState is the target's own NOP-In that waits for an answer.
type pingState struct {
	tag     uint32 // its TTT; counts up, never ReservedTag
	waiting bool
	heard   uint64 // conn.heard when it was last looked at
}

// nopOut takes a NOP-Out (RFC 7143 §11.18): a ping of the initiator, or its
// answer to one of ours.
func (c *conn) nopOut(p *iscsi.PDU) {
	itt := p.BHS.ITT()
	if itt == iscsi.ReservedTag {
		c.mu.Lock()
		if p.BHS.TTT() == c.ping.tag {
			c.ping.waiting = false
		}
		c.mu.Unlock()
		p.Release()
		return
	}
	c.mu.Lock()
	out := &c.out
	n := out.BHS.NewNopIn()
	n.SetITT(itt)
	n.SetTTT(iscsi.ReservedTag)
	n.SetLUN(p.BHS.LUN())
	// The ping data comes back as far as the initiator can take it.
	out.Data = p.Data[:min(len(p.Data), c.controlData())]
	c.sendLocked(out, takeStatSN)
	out.Data = nil
	c.mu.Unlock()
	p.Release()
}

// sendPing sends a NOP-In that asks for an answer.
func (c *conn) sendPing() {
	c.mu.Lock()
	c.ping.tag++
	if c.ping.tag == iscsi.ReservedTag {
		c.ping.tag = 0
	}
	c.ping.waiting = true
	out := &c.out
	n := out.BHS.NewNopIn()
	n.SetITT(iscsi.ReservedTag)
	n.SetTTT(c.ping.tag)
	out.Data = nil
	c.sendLocked(out, peekStatSN)
	c.mu.Unlock()
	c.dm.Push()
}

// announceWindow tells an initiator that waits for a place in the window that
// there is one: a NOP-In that wants no answer.
func (s *session) announceWindow() {
	c := s.speaker()
	if c == nil {
		return
	}
	c.mu.Lock()
	out := &c.out
	n := out.BHS.NewNopIn()
	n.SetITT(iscsi.ReservedTag)
	n.SetTTT(iscsi.ReservedTag)
	out.Data = nil
	c.sendLocked(out, peekStatSN)
	c.mu.Unlock()
	// This runs inside an up-call of a Push, or is followed by one of a worker.
	c.dm.Push()
}

// watch is the heartbeat of a session: it pings an initiator that was silent
// for an interval, and ends a connection whose initiator does not answer or
// does not send the data it owes. It runs a few times a minute, so an idle
// session costs nothing.
//
//	silent for NopInterval ──NOP-In──▶ waiting ──anything received──▶ content
//	                                      └──silent for NopReply──▶ closed
//
// Without pings it still looks for what is owed; TCP's keepalive finds the dead.
func (c *conn) watch() (next time.Duration) {
	s := c.sess
	if err := s.owes(c, c.srv.now()-c.srv.cfg.Timeouts.DataOut); err != nil {
		c.close(err)
		return 0
	}
	heard := c.heard.Load()
	c.mu.Lock()
	silent := heard == c.ping.heard
	waiting := c.ping.waiting
	c.ping.heard = heard
	if !silent {
		// Any PDU shows that the initiator is alive.
		c.ping.waiting = false
	}
	c.mu.Unlock()
	t := &c.srv.cfg.Timeouts
	switch {
	case c.quiet.Load():
		// Nothing may be sent to it, so it cannot be asked whether it is there.
		if t.FirstCommand > 0 && c.srv.now()-c.entered >= t.FirstCommand {
			c.close(errFirstCommand)
			return 0
		}
		return t.beat()
	case !silent, t.NopInterval < 0:
		return t.beat()
	case waiting:
		c.close(errNopTimeout)
		return 0
	default:
		c.sendPing()
		return t.NopReply
	}
}
