package initiator

// outbox is what a session has to do once it has released its lock: call Done of the
// requests that have ended, in order, and then the rest. The session's mutex guards it.
type outbox struct {
	done     *request // linked by Request.next
	doneTail *request
	later    []func()
	rest     chan struct{} // closed when nothing is outstanding; nil while nobody waits for that
}

// end adds a request that has ended.
func (o *outbox) end(r *request) {
	r.next = nil
	if o.doneTail == nil {
		o.done = r
	} else {
		o.doneTail.next = r
	}
	o.doneTail = r
}

// run adds something else.
func (o *outbox) run(f func()) { o.later = append(o.later, f) }

// take empties the box; runLater does what was in it.
func (o *outbox) take() (*request, []func()) {
	done, later := o.done, o.later
	o.done, o.doneTail, o.later = nil, nil, nil
	return done, later
}

// runLater does what outbox.take has returned, without the lock. Done is called for each request
// by itself, while that is in the cache: one call for all of them gains nothing (ADR 189).
func runLater(done *request, later []func()) {
	for done != nil {
		r := done
		done, r.next = r.next, nil
		if r.Done != nil {
			r.Done(r.Request)
		}
	}
	for _, f := range later {
		f()
	}
}

// unlock releases s.mu and then does what must not be done under it: Done
// callbacks, events, ends of connections.
func (s *Session) unlock() {
	done, later := s.takeLocked()
	s.mu.Unlock()
	runLater(done, later)
}

// takeLocked takes what is to be done after s.mu has been released.
func (s *Session) takeLocked() (*request, []func()) {
	if s.out.rest != nil && s.atRest() {
		close(s.out.rest)
		s.out.rest = nil
	}
	return s.out.take()
}

// atRest reports whether nothing is outstanding at the target and, while commands flow, nothing
// waits to be sent: logout.drain waits for that. The caller holds s.mu.
func (s *Session) atRest() bool {
	if s.conn != nil && s.conn.state == connFlowing && (s.tasks.used > 0 || !s.wait.queue.Empty()) {
		return false
	}
	for i := range s.tasks.slots {
		t := &s.tasks.slots[i]
		if t.kind == kindCommand && (t.state == taskSent || t.state == taskAborting) {
			return false
		}
	}
	return true
}

// event has OnEvent called with e after the next unlock, in the order of the events. The caller
// holds s.mu.
func (s *Session) event(e Event) {
	if s.cfg.OnEvent == nil {
		return
	}
	e.Target, e.Address = s.cfg.TargetName, s.portal
	s.events.Put(e)
	s.out.run(s.events.Tell)
}
