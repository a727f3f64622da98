package iscsi

import (
	"time"

	"softiser/internal/iscsi"
)

// ackWait waits until the initiator has acknowledged what was sent on a connection
// before the StatSN upTo.
type ackWait struct {
	upTo uint32
	f    *fence
}

// ackTime bounds what a task management function waits for: acknowledgements of other
// initiators, and commands that are still on their way.
const ackTime = 5 * time.Second

// afterAcks calls then when no response of an aborted task can arrive behind the task
// management response any more (RFC 7143 §4.2.3.3 d): when every status has been
// acknowledged that was sent on connections of s other than c, which keep no order
// among each other, and on those of the sessions that shared the tasks. A NOP-In asks
// for the acknowledgement; a connection that ends is not waited for. Other initiators,
// who may be dead or mean no good, are waited for no longer than ackTime.
func (s *session) afterAcks(c *conn, others []*session, then func()) {
	var bound *time.Timer
	f := newFence(func() {
		if bound != nil {
			bound.Stop()
		}
		then()
	})
	if s.many {
		s.solicitAcks(c, f)
	}
	var asked []*conn
	for _, x := range others {
		asked = append(asked, x.solicitAcks(nil, f)...)
	}
	if len(asked) > 0 {
		bound = time.AfterFunc(ackTime, func() {
			for _, o := range asked {
				o.acked(func(w ackWait) bool { return w.f == f })
			}
		})
	}
	f.release()
}

// solicitAcks makes f wait for the connections of s, except one of them, and returns
// those that it waits for.
func (s *session) solicitAcks(except *conn, f *fence) (asked []*conn) {
	for _, o := range s.connList() {
		if o != except && o.state.get() == connFull && o.awaitAck(f) {
			o.sendPing()
			asked = append(asked, o)
		}
	}
	return asked
}

// sharers returns the other sessions that have tasks which function f would abort.
func (s *session) sharers(f iscsi.TaskFunction, lun uint64, all bool) (others []*session) {
	if f == iscsi.AbortTaskSet || f == iscsi.ITNexusReset {
		return nil // of this nexus only
	}
	for _, x := range s.srv.sessionList(s.node) {
		if x == s {
			continue
		}
		shares := false
		x.mu.Lock()
		x.tags.each(func(k *task) { shares = shares || all || sameLUN(k.scsi.LUN, lun) })
		x.mu.Unlock()
		if shares {
			others = append(others, x)
		}
	}
	return others
}

// awaitAck makes f wait for the acknowledgement of what has been sent on c. It
// reports false when c has ended.
func (c *conn) awaitAck(f *fence) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state.get() == connClosed {
		return false
	}
	f.left.Add(1)
	c.acks = append(c.acks, ackWait{c.statSN.Load(), f})
	c.acksDue.Store(true)
	return true
}

// acknowledged takes an ExpStatSN while somebody waits for one.
func (c *conn) acknowledged(exp uint32) {
	c.acked(func(w ackWait) bool { return iscsi.SerialLessEq(w.upTo, exp) })
}

// acked ends the waits that are over.
func (c *conn) acked(over func(ackWait) bool) {
	c.mu.Lock()
	var ended []*fence
	rest := c.acks[:0]
	for _, w := range c.acks {
		if over(w) {
			ended = append(ended, w.f)
		} else {
			rest = append(rest, w)
		}
	}
	c.acks = rest
	c.acksDue.Store(len(rest) > 0)
	c.mu.Unlock()
	for _, f := range ended {
		f.release()
	}
}
