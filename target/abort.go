package target

import (
	"softiser/internal/iscsi"
	"softiser/target/scsi"
)

// abortCalls are the calls that follow from aborting tasks. They are collected
// under the session's lock and made without it.
type abortCalls struct {
	nexus *scsi.Nexus // the device server has some of the tasks; nil: it has none
	ended []*task     // pinned; ended without the device server
}

// abortLocked aborts tasks of s: they will not be answered. Of those that the
// device server has, it must be all. f, when not nil, is released once for each
// as soon as nothing of it is left. The caller holds s.mu and runs what is
// returned after unlocking.
func (s *session) abortLocked(doomed []*task, f *fence) abortCalls {
	var calls abortCalls
	for _, k := range doomed {
		switch k.state {
		case taskFree, taskEnded:
			continue
		case taskCollecting:
			if k.has(flagStall) {
				s.stalled--
			}
			k.addFence(f)
			k.setState(taskAborting)
			k.respond()
			k.pins++
			calls.ended = append(calls.ended, k)
		case taskRunning:
			k.addFence(f)
			k.setState(taskAborting)
			if k.reply {
				// It had been answered behind data that will not be sent now.
				k.reply = false
				k.in.line = k.in.line[:0]
				k.respond()
				k.pins++
				calls.ended = append(calls.ended, k)
				continue
			}
			if k.out.running && k.moving > 0 {
				k.conn.dm.AbortTransfer(&k.out.x)
			}
			calls.nexus = s.nexus
		case taskAborting:
			k.addFence(f)
		}
	}
	return calls
}

func (k *task) addFence(f *fence) {
	if f != nil {
		f.left.Add(1)
		k.fences = append(k.fences, f)
	}
}

// run makes the calls, without locks held.
func (a abortCalls) run() {
	if a.nexus != nil {
		a.nexus.AbortTasks()
	}
	for _, k := range a.ended {
		k.unpin()
	}
}

// unpin lets go of a slot that was held against reuse.
func (k *task) unpin() {
	k.sess.mu.Lock()
	k.pins--
	k.unlockSettle()
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
