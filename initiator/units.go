package initiator

// unit is what a session knows of one of its LUNs. The session's mutex guards it.
type unit struct {
	lun   *LUN
	stale bool   // nothing is sent to it before a look
	by    *conn  // it is being looked at over this connection; nil: it is not
	looks uint32 // begun, in the background

	resets int // requests to reset it that are outstanding: nothing is sent to it meanwhile
}

// unseen reports whether commands of the LUN wait.
func (u *unit) unseen() bool { return u.stale || u.by != nil || u.resets > 0 }

// units are the LUNs of a session. The session's mutex guards them.
type units struct {
	s     *Session
	list  []*unit
	stale int    // those that are unseen; 0 nearly always, and then nothing is looked up per command
	told  uint32 // reports of a change, of any LUN
}

// of returns what the session knows of l, nil if l is none of its LUNs.
func (us *units) of(l *LUN) *unit {
	for _, u := range us.list {
		if u.lun == l {
			return u
		}
	}
	return nil
}

// holds returns the unit whose look the commands of l wait for, or nil.
func (us *units) holds(l *LUN) *unit {
	if us.stale == 0 {
		return nil
	}
	if u := us.of(l); u != nil && u.unseen() {
		return u
	}
	return nil
}

// firstStale returns one that has to be looked at, or nil.
func (us *units) firstStale() *unit {
	for _, u := range us.list {
		if u.stale {
			return u
		}
	}
	return nil
}

// set changes u and keeps the count.
func (us *units) set(u *unit, stale bool, by *conn) {
	if u.unseen() {
		us.stale--
	}
	if u.stale, u.by = stale, by; u.unseen() {
		us.stale++
	}
}

// resetting adds n to the requests to reset a LUN that are outstanding. What was sent to it
// meanwhile the target might drop with the rest, or not.
func (us *units) resetting(wire uint64, n int) {
	for _, u := range us.list {
		if u.lun.wire != wire {
			continue
		}
		if u.unseen() {
			us.stale--
		}
		if u.resets = max(u.resets+n, 0); u.unseen() {
			us.stale++
		}
	}
}

// remove takes l out.
func (us *units) remove(l *LUN) {
	for i, u := range us.list {
		if u.lun == l {
			us.set(u, false, nil)
			if u.resets > 0 {
				u.resets = 0
				us.stale--
			}
			us.list = append(us.list[:i:i], us.list[i+1:]...)
			return
		}
	}
}

// reports returns how many reports of a change there were.
func (us *units) reports() uint32 {
	s := us.s
	s.mu.Lock()
	defer s.mu.Unlock()
	return us.told
}

// opened reports whether a LUN is in use; one that is just being looked at is not.
func (us *units) opened(wire uint64) bool {
	for _, u := range us.list {
		if u.lun.wire == wire {
			return true
		}
	}
	return false
}

// firstSeen returns what is sent next while some LUNs have to be looked at: a command to
// be repeated, which is taken out of its list, or else the first request of which a command
// can start. It has those looked at that anything waits for. The caller holds s.mu.
func (us *units) firstSeen() (*task, *request) {
	s := us.s
	for i := s.wait.resend.head; i != none; i = s.tasks.slots[i].next {
		t := &s.tasks.slots[i]
		u := us.holds(t.req.lun)
		if u == nil {
			s.wait.dropResend(t)
			return t, nil
		}
		us.look(u)
	}
	for r := s.wait.queue.First(); r != nil; r = r.node.Next() {
		u := us.holds(r.lun)
		if u == nil {
			return nil, r
		}
		us.look(u)
	}
	return nil, nil
}
