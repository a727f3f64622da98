package iscsi

import (
	"sync/atomic"
	"time"

	"softiser/internal/iscsi"
)

// ackWait waits until the initiator has acknowledged what was sent on a connection
// before the StatSN upTo.
type ackWait struct {
	upTo uint32
	f    *fence
}

// ackWaits are the waits for acknowledgements of what a connection has sent.
type ackWaits struct {
	c     *conn
	due   atomic.Bool // there are some; written under c.out.mu
	waits []ackWait   // guarded by c.out.mu
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
func (m *taskManager) afterAcks(c *conn, others []*session, then func()) {
	var bound *time.Timer
	f := newFence(func() {
		if bound != nil {
			bound.Stop()
		}
		then()
	})
	if m.sess.order.takesTurns {
		m.solicitAcks(c, f)
	}
	var asked []*conn
	for _, x := range others {
		asked = append(asked, x.manager.solicitAcks(nil, f)...)
	}
	if len(asked) > 0 {
		bound = time.AfterFunc(ackTime, func() {
			for _, o := range asked {
				o.acks.end(func(w ackWait) bool { return w.f == f })
			}
		})
	}
	f.release()
}

// solicitAcks makes f wait for the connections of s, except one of them, and returns
// those that it waits for. To a quiet one nothing has been sent, and nothing may be.
func (m *taskManager) solicitAcks(except *conn, f *fence) (asked []*conn) {
	for _, o := range m.sess.conns.list() {
		if o != except && o.state.get() == connFull && !o.quiet.Load() && o.acks.await(f) {
			o.beat.sendPing()
			asked = append(asked, o)
		}
	}
	return asked
}

// sharers returns the other sessions that have tasks which function f of that scope would abort.
func (m *taskManager) sharers(f iscsi.TaskFunction, about scope) (others []*session) {
	s := m.sess
	if f == iscsi.AbortTaskSet || f == iscsi.ITNexusReset {
		return nil // of this nexus only
	}
	for _, x := range s.srv.sessionList(s.node) {
		if x == s {
			continue
		}
		shares := false
		x.mu.Lock()
		x.cmds.tags.each(func(k *task) { shares = shares || about.covers(k) })
		x.mu.Unlock()
		if shares {
			others = append(others, x)
		}
	}
	return others
}

// await makes f wait for the acknowledgement of what has been sent on c. It
// reports false when c has ended.
func (a *ackWaits) await(f *fence) bool {
	c := a.c
	c.out.mu.Lock()
	defer c.out.mu.Unlock()
	if c.state.get() == connClosed {
		return false
	}
	f.left.Add(1)
	a.waits = append(a.waits, ackWait{c.out.statSN.Load(), f})
	a.due.Store(true)
	return true
}

// acknowledged takes an ExpStatSN while somebody waits for one.
func (a *ackWaits) acknowledged(exp uint32) {
	a.end(func(w ackWait) bool { return iscsi.SerialLessEq(w.upTo, exp) })
}

// end ends the waits that are over.
func (a *ackWaits) end(over func(ackWait) bool) {
	a.c.out.mu.Lock()
	var ended []*fence
	rest := a.waits[:0]
	for _, w := range a.waits {
		if over(w) {
			ended = append(ended, w.f)
		} else {
			rest = append(rest, w)
		}
	}
	a.waits = rest
	a.due.Store(len(rest) > 0)
	a.c.out.mu.Unlock()
	for _, f := range ended {
		f.release()
	}
}
