package iscsi

import (
	"softiser/internal/iscsi"
	"softiser/target/scsi"
)

// abortCalls are the calls that follow from aborting tasks. They are collected
// under the session's lock and made without it.
type abortCalls struct {
	nexus   *scsi.Nexus
	running []*task // pinned; with the device server
	ended   []*task // pinned; ended without the device server
	held    []heldPDU
}

// abortLocked aborts tasks of s: they will not be answered. f, when not nil, is
// released once for each as soon as nothing of it is left. The caller holds sess.mu
// and runs what is returned after unlocking.
func (m *commands) abortLocked(doomed []*task, f *fence) abortCalls {
	calls := abortCalls{nexus: m.sess.nexus}
	for _, k := range doomed {
		switch k.state {
		case taskFree, taskEnded:
			continue
		case taskCollecting:
			m.sess.order.seq.bursts.remove(k.has(flagStall))
			if k.unsol.late != nil {
				k.unsol.late.Stop()
				k.unsol.late = nil
			}
			k.addFenceLocked(f)
			k.setStateLocked(taskAborting)
			k.respondLocked()
			k.pins++
			calls.ended = append(calls.ended, k)
		case taskRunning:
			k.addFenceLocked(f)
			k.setStateLocked(taskAborting)
			if k.reply {
				// It had been answered behind data that will not be sent now.
				k.reply = false
				k.in.line = k.in.line[:0]
				k.respondLocked()
				k.pins++
				calls.ended = append(calls.ended, k)
				continue
			}
			if k.out.running && k.moving > 0 {
				k.conn().dm.AbortTransfer(&k.out.x)
			}
			k.pins++
			calls.running = append(calls.running, k)
		case taskAborting:
			k.addFenceLocked(f)
		}
	}
	return calls
}

// overtakes reports whether a command may go to the device server while a task management
// function is carried out: it is immediate, or the last of its unsolicited data comes on another
// connection, or is waited for no longer.
func (s *session) overtakes() bool { return s.order.takesTurns || s.erl > 0 }

// enterLocked begins the way of a task to the device server, beside the order of the commands.
// entered is to follow. The caller holds sess.mu.
func (k *task) enterLocked() {
	k.flags |= flagEntering
	k.pins++
}

// abortEnteringLocked aborts a task that the device server may not know of yet, and would
// carry out behind the answer: once it is there. f waits for its end. The caller holds
// sess.mu.
func (k *task) abortEnteringLocked(f *fence) {
	k.flags |= flagDoomed
	k.addFenceLocked(f)
}

// entered ends the way of a task to the device server.
func (k *task) entered() {
	s := k.session()
	s.mu.Lock()
	var calls abortCalls
	if k.has(flagDoomed) {
		calls = s.cmds.abortLocked([]*task{k}, nil)
	}
	k.flags &^= flagEntering | flagDoomed
	s.mu.Unlock()
	calls.run()
	k.unpin()
}

// count is how many tasks the calls are about.
func (a *abortCalls) count() int { return len(a.running) + len(a.ended) }

func (k *task) addFenceLocked(f *fence) {
	if f != nil {
		f.left.Add(1)
		k.fences = append(k.fences, f)
	}
}

// run makes the calls, without locks held.
func (a abortCalls) run() {
	for _, k := range a.running {
		a.nexus.AbortTask(&k.scsi)
		k.unpin()
	}
	for _, k := range a.ended {
		k.unpin()
	}
	for _, h := range a.held {
		h.release()
	}
}

// unpin lets go of a slot that was held against reuse.
func (k *task) unpin() {
	s := k.session()
	s.mu.Lock()
	k.pins--
	done := k.doneLocked()
	s.mu.Unlock()
	if done {
		s.cmds.settle(k)
	}
}

// sameLUN compares two wire LUNs: peripheral and flat addressing of one number
// mean the same unit.
func sameLUN(a, b uint64) bool {
	if a == b {
		return true
	}
	x, okX := iscsi.DecodeLUN(a)
	y, okY := iscsi.DecodeLUN(b)
	return okX && okY && x == y
}
