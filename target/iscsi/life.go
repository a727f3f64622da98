package iscsi

// This file is about how a session is brought to its end.

// end begins to end the session: nothing new is accepted and every task is
// aborted. When the last one has ended, the nexus goes and done is closed. The
// connections must be closed by the caller (see shut), or be closed already. It
// may be called several times; the first cause counts.
func (s *session) end(cause error) {
	s.mu.Lock()
	if s.state != sessionActive {
		s.mu.Unlock()
		return
	}
	s.setStateLocked(sessionEnding)
	s.cause = cause
	held := s.order.seq.close()
	s.conns.members.close()
	var doomed []*task
	s.cmds.tags.each(func(k *task) { doomed = append(doomed, k) })
	calls := s.cmds.abortLocked(doomed, nil)
	over := s.overLocked()
	s.mu.Unlock()
	for _, h := range held {
		h.release()
	}
	calls.run()
	if over {
		s.finish()
	}
}

// shut closes every connection at once and ends the session.
func (s *session) shut(cause error) {
	s.mu.Lock()
	s.doomed = true
	s.mu.Unlock()
	for _, c := range s.conns.list() {
		c.close(cause)
	}
	s.end(cause)
}

// dismiss ends the session like shut, but tells the initiator first: on each of its
// connections, because those keep no order among each other and the end of one may
// be all that is noticed otherwise. What is queued still goes out, within hangUpTime.
func (s *session) dismiss(cause error) {
	s.mu.Lock()
	s.doomed = true
	s.mu.Unlock()
	for _, c := range s.conns.list() {
		c.out.sessionDropped()
		c.hangUp()
	}
	s.end(cause)
}

// orphaned ends a session whose only connection was to be replaced by one that
// has failed; not one whose tasks wait for another (giveUp).
func (m *membership) orphaned(err error) {
	s := m.sess
	s.mu.Lock()
	none := m.members.none()
	s.mu.Unlock()
	if none {
		s.end(err)
	}
}

// hangUp closes all connections of a session that has been logged out.
func (m *membership) hangUp() {
	for _, c := range m.list() {
		c.hangUp()
	}
}
