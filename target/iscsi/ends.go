package iscsi

import (
	"time"

	"go.uber.org/zap"
)

// This file has the end of a command slot, and of a session with its last slot.

// doneLocked reports whether nothing uses the slot any more. If so the slot is pinned for the
// caller, which holds sess.mu and calls settle after releasing it.
func (k *task) doneLocked() bool {
	if k.state != taskEnded || k.moving > 0 || k.pins > 0 {
		return false
	}
	k.pins++
	k.dropBurstLocked()
	return true
}

// settle releases the memory of slots for which doneLocked was true, linked by task.next, and
// then frees the slots, wakes the fences that waited for them and opens the window.
func (m *commands) settle(done *task) {
	s := m.sess
	for k := done; k != nil; k = k.next {
		if k.executed {
			k.executed = false
			k.scsi.Release()
		}
	}
	var fences []*fence
	s.mu.Lock()
	for done != nil {
		k := done
		done = k.next
		k.pins--
		fences = append(fences, k.fences...)
		m.putBackLocked(k)
	}
	s.openWindowLocked()
	s.still.Load().look()
	over := s.overLocked()
	hidden := s.state == sessionActive && s.order.seq.win.hidden()
	s.mu.Unlock()
	for _, f := range fences {
		f.release()
	}
	if hidden {
		s.announceWindow()
	}
	if over {
		s.finish()
	}
}

// overLocked reports whether an ending session has no task left; it does so once, and sets
// the state. The caller holds s.mu.
func (s *session) overLocked() bool {
	if s.state == sessionEnding && s.order.seq.win.used == 0 {
		s.setStateLocked(sessionEnded)
		return true
	}
	return false
}

// finish is the end of a session, without locks held: I_T nexus loss.
func (s *session) finish() {
	s.node.endNexus(s.nexus)
	s.srv.forget(s)
	close(s.done)
}

// forget removes an ended session.
func (s *Frontend) forget(n *session) {
	st, wire := n.status(), n.wire()
	s.mu.Lock()
	traffic := s.past[wire.Transport]
	traffic.add(&st)
	s.past[wire.Transport] = traffic
	s.sessions.remove(n)
	if n.aged != nil {
		n.aged.Stop()
	}
	s.mu.Unlock()
	s.limits.sessions.Info(n.log(), "session ended", zap.NamedError("reason", n.endCause()), zap.Duration("age", time.Since(n.born)))
}

// putBackLocked returns a slot to its connection. The caller holds s.mu, and opens the window.
func (m *commands) putBackLocked(k *task) {
	k.setStateLocked(taskFree)
	k.fences = k.fences[:0]
	k.conn().slots.put(k)
	m.sess.order.seq.win.used--
}
