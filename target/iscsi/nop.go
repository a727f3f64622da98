package iscsi

import (
	"time"

	"softiser/internal/iscsi"
)

// pingState is the target's own NOP-In that waits for an answer.
type pingState struct {
	tag     uint32 // its TTT; counts up, never ReservedTag
	waiting bool
	statSN  uint32        // that it shows: its answer acknowledges what came before
	heard   uint64        // conn.heard when it was last looked at
	sent    uint64        // iscsi.Backlog.Sent, likewise
	stuck   bool          // nothing had left by then of what waited
	since   time.Duration // if stuck: the first time that this was seen
}

// heartbeat finds out whether the initiator of a connection is there, and reads and sends
// what it has to.
type heartbeat struct {
	c    *conn
	ping pingState // guarded by c.out.mu
}

// nopOut takes a NOP-Out (RFC 7143 §11.18): a ping of the initiator, or its
// answer to one of ours.
func (h *heartbeat) nopOut(p *iscsi.PDU) {
	c := h.c
	itt := p.BHS.ITT()
	if itt == iscsi.ReservedTag {
		c.out.mu.Lock()
		if p.BHS.TTT() == h.ping.tag {
			h.ping.waiting = false
		}
		c.out.mu.Unlock()
		p.Release()
		return
	}
	c.out.mu.Lock()
	out := &c.out.pdu
	n := out.BHS.NewNopIn()
	n.SetITT(itt)
	n.SetTTT(iscsi.ReservedTag)
	n.SetLUN(p.BHS.LUN())
	// The ping data comes back as far as the initiator can take it.
	out.Data = p.Data[:min(len(p.Data), c.out.controlData())]
	c.out.sendLocked(out, takeStatSN)
	out.Data = nil
	c.out.mu.Unlock()
	p.Release()
}

// sendPing sends a NOP-In that asks for an answer, unless there is one under way
// whose answer says as much.
func (h *heartbeat) sendPing() {
	c := h.c
	c.out.mu.Lock()
	if h.ping.waiting && h.ping.statSN == c.out.statSN.Load() {
		c.out.mu.Unlock()
		return
	}
	h.ping.statSN = c.out.statSN.Load()
	h.ping.tag++
	if h.ping.tag == iscsi.ReservedTag {
		h.ping.tag = 0
	}
	h.ping.waiting = true
	out := &c.out.pdu
	n := out.BHS.NewNopIn()
	n.SetITT(iscsi.ReservedTag)
	n.SetTTT(h.ping.tag)
	out.Data = nil
	c.out.sendLocked(out, peekStatSN)
	c.out.mu.Unlock()
	c.dm.Push()
}

// announceWindow tells an initiator that waits for a place in the window that
// there is one: a NOP-In that wants no answer.
func (s *session) announceWindow() {
	c := s.conns.speaker()
	if c == nil {
		return
	}
	c.out.mu.Lock()
	out := &c.out.pdu
	n := out.BHS.NewNopIn()
	n.SetITT(iscsi.ReservedTag)
	n.SetTTT(iscsi.ReservedTag)
	out.Data = nil
	c.out.sendLocked(out, peekStatSN)
	c.out.mu.Unlock()
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
// PDUs alone are no life: an initiator that sends and never reads is kept waiting
// (iscsi.Unsent), and costs what waits for it. So a connection on which something is
// to be sent and nothing leaves counts as silent, whatever comes in; and one whose
// initiator reads, however slowly, is alive though nothing is read from it.
//
// What is queued at the moment of one look may leave right behind it, so that the looks go
// on at their pace until nothing has left for NopReply.
//
// Without pings it still looks for what is owed; TCP's keepalive finds the dead. Discovery
// sessions are not pinged: all that an initiator may send in one are Text and Logout Requests
// (RFC 7143 §4.3), and Linux over iSER has a receive buffer only for what it has asked for.
// They end by their age.
func (h *heartbeat) watch() (next time.Duration) {
	c := h.c
	s := c.sess
	if err := s.owes(c, c.srv.now()-c.srv.cfg.Timeouts.DataOut); err != nil {
		c.close(err)
		return 0
	}
	heard, out, now := c.heard.Load(), c.dm.Backlog(), c.srv.now()
	c.out.mu.Lock()
	p := &h.ping
	moved := out.Sent != p.sent
	stuck := out.Waiting && !moved
	silent := stuck || heard == p.heard && !(out.Waiting && moved)
	if stuck && !p.stuck {
		p.since = now
	}
	waiting, stuckFor := p.waiting, now-p.since
	p.heard, p.sent, p.stuck = heard, out.Sent, stuck
	if !silent {
		p.waiting = false
	}
	c.out.mu.Unlock()
	t := &c.srv.cfg.Timeouts
	switch {
	case c.quiet.Load():
		// Nothing may be sent to it, so it cannot be asked whether it is there.
		if t.FirstCommand > 0 && now-c.entered >= t.FirstCommand {
			c.close(errFirstCommand)
			return 0
		}
		return t.beat()
	case stuck && t.NopReply > 0 && stuckFor >= t.NopReply:
		c.close(errNotRead)
		return 0
	case stuck && t.NopReply > 0:
		return min(t.beat(), t.NopReply-stuckFor) // a ping would wait with the rest
	case !silent, t.NopInterval < 0, s.discovery():
		return t.beat()
	case waiting:
		c.close(errNopTimeout)
		return 0
	default:
		h.sendPing()
		return t.NopReply
	}
}

// owes says what the initiator has owed c since before the given time: the data of
// a WRITE, or a command of the session without which the later ones cannot be
// delivered. It returns nil when there is nothing.
func (s *session) owes(c *conn, before time.Duration) error {
	if s.srv.cfg.Timeouts.DataOut < 0 {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.order.seq.n > 0 && s.order.seq.since < before {
		return errGap
	}
	late := false
	s.cmds.tags.each(func(k *task) {
		late = late || k.conn() == c && (k.state == taskCollecting && k.started < before || k.out.running && k.out.since < before)
	})
	if late {
		return errDataTimeout
	}
	return nil
}
