package initiator

// unit is what a session knows of one of its LUNs. When a LUN may have changed, the session
// looks at it before it sends further commands: it asks for identity and size (look.go).
// The session's mutex guards it.
type unit struct {
	lun   *LUN
	stale bool   // it may have changed: nothing is sent to it before a look
	by    *conn  // connection over which a look is under way; nil: none is
	looks uint32 // looks begun in the background

	resets int // LUN RESETs that are outstanding: nothing is sent to it meanwhile
}

// held reports whether commands of the LUN are held back.
func (u *unit) held() bool { return u.stale || u.by != nil || u.resets > 0 }

// units are the LUNs of a session. The session's mutex guards them.
type units struct {
	s    *Session
	list []*unit
	held int    // units that are held; usually 0, and then no unit is looked up per command
	told uint32 // reports of a change so far, of any LUN
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

// holds returns the unit of l if its commands are held back, else nil.
func (us *units) holds(l *LUN) *unit {
	if us.held == 0 {
		return nil
	}
	if u := us.of(l); u != nil && u.held() {
		return u
	}
	return nil
}

// firstStale returns a unit that has to be looked at, or nil.
func (us *units) firstStale() *unit {
	for _, u := range us.list {
		if u.stale {
			return u
		}
	}
	return nil
}

// set changes u, and with it the count of held units.
func (us *units) set(u *unit, stale bool, by *conn) {
	if u.held() {
		us.held--
	}
	if u.stale, u.by = stale, by; u.held() {
		us.held++
	}
}

// resetting adds n to the number of outstanding resets of a LUN. Its commands are held back
// meanwhile, because the target might abort a new command with the older ones, or not.
func (us *units) resetting(wire uint64, n int) {
	for _, u := range us.list {
		if u.lun.wire != wire {
			continue
		}
		if u.held() {
			us.held--
		}
		if u.resets = max(u.resets+n, 0); u.held() {
			us.held++
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
				us.held--
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

// nextToSend returns what is sent next while some LUNs are held: a command to be repeated,
// which is taken out of its list, or else the first request of which a command can start. It
// begins a look at every stale LUN that something waits for. The caller holds s.mu.
func (us *units) nextToSend() (*task, *request) {
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
