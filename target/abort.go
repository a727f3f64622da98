package target

import "softiser/internal/iscsi"

// abortCalls are the calls into the device server that follow from aborting
// tasks. They are collected under the session's lock and made without it.
type abortCalls struct {
	running []*task // pinned
	settle  []*task // pinned; ended without the device server
}

// abortLocked aborts tasks of s: they will not be answered. f, when not nil, is
// released once for each as soon as nothing of it is left. The caller holds
// s.mu and runs what is returned after unlocking.
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
			calls.settle = append(calls.settle, k)
		case taskRunning:
			k.addFence(f)
			k.setState(taskAborting)
			if k.out.running && k.moving > 0 {
				k.conn.dm.AbortTransfer(&k.out.x)
			}
			if k.reply {
				// It had been answered behind data that will not be sent now.
				k.reply = false
				k.in.line = k.in.line[:0]
				k.respond()
				k.pins++
				calls.settle = append(calls.settle, k)
				continue
			}
			k.pins++
			calls.running = append(calls.running, k)
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
	for _, k := range a.running {
		k.scsi.Abort()
		k.unpin()
	}
	for _, k := range a.settle {
		k.unpin()
	}
}

// unpin lets go of a slot that was held against reuse.
func (k *task) unpin() {
	k.sess.mu.Lock()
	k.pins--
	k.unlockSettle()
}

// matching returns the tasks of s that a task management request for a logical
// unit (all: for every one) affects: those received before it. The caller holds
// s.mu.
func (s *session) matching(lun uint64, all bool) []*task {
	var ks []*task
	s.tags.each(func(k *task) {
		if all || sameLUN(k.scsi.LUN, lun) {
			ks = append(ks, k)
		}
	})
	return ks
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
