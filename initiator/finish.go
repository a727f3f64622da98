package initiator

import (
	"errors"

	"softiser/initiator/blockio"
)

// finish ends a request that is in no queue. The caller holds s.mu.
func (s *Session) finish(r *request, err error) {
	if r.Err == nil {
		r.Err = err
	}
	if r.Err != nil {
		s.stats.Errors++
	}
	r.setState(s, reqIdle)
	s.out.end(r)
}

// endTask frees the slot of a command that will not be sent again and ends its
// request with it, if that was the last. The caller holds s.mu.
func (s *Session) endTask(t *task, err error) {
	if t.kind != kindCommand {
		if f := t.answer; f != nil {
			s.out.run(func() { f(nil, err) })
		}
		s.tasks.put(t)
		return
	}
	r := t.req
	s.tasks.put(t)
	r.parts--
	if err != nil {
		s.stop(r, err)
	} else if r.cached() {
		r.lun.epoch.Load().Wrote(r.Flusher)
	}
	if r.parts > 0 || r.state != reqRunning {
		return
	}
	if r.cancel == nil && s.caches.settle(r) {
		return
	}
	s.finish(r, r.cancel)
}

// stop makes r end with err, and starts no further commands of it; those under way end first. The
// caller holds s.mu.
func (s *Session) stop(r *request, err error) {
	if r.cancel == nil {
		r.cancel = err
	}
	if r.state == reqQueued {
		if !s.wait.queue.remove(r) {
			s.wait.ctlQueue.remove(r)
		}
		r.setState(s, reqRunning)
	}
}

// unknown adds ErrOutcomeUnknown to the error of r, if that is set: the target may still carry out
// a part of r. ErrSessionLost says so already. The caller holds s.mu.
func (s *Session) unknown(r *request) {
	told := errors.Is(r.cancel, blockio.ErrOutcomeUnknown) || errors.Is(r.cancel, blockio.ErrSessionLost)
	if r.cancel != nil && !told && (rowOf(r.Op).changes || !r.idempotent()) {
		s.stats.OutcomeUnknown++
		r.cancel = blockio.Unknown(r.cancel)
	}
}

// endLate ends the parts of only, or of every request if that is nil, that recovery.holdBack has
// kept from ending. The caller holds s.mu.
func (s *Session) endLate(only *request) {
	late := s.rec.late
	s.rec.late = nil
	for _, r := range late {
		if only != nil && r != only {
			s.rec.late = append(s.rec.late, r)
		} else if r.parts--; r.parts == 0 && r.state == reqRunning {
			s.finish(r, r.cancel)
		}
	}
}

// failAll ends every request. There is no connection. The caller holds s.mu.
func (s *Session) failAll(err error) {
	for i := range s.tasks.slots {
		if t := &s.tasks.slots[i]; t.state != taskFree {
			s.endTask(t, err)
		}
	}
	s.endLate(nil)
	s.wait.forget()
	for _, q := range []*reqQueue{&s.wait.ctlQueue, &s.wait.queue} {
		for r := q.First(); r != nil; r = q.First() {
			q.remove(r)
			s.finish(r, err)
		}
	}
}
