package volume

// AbortReason tells who ended a command early.
type AbortReason uint32

// Reasons.
const (
	NotAborted     AbortReason = iota
	AbortedByOwner             // its own client: it expects no status
	AbortedByOther             // another client, whom its own may have to be told of
	AbortedByNode              // this node, which gives the volume up: another path may do
)

// Aborts collects what is left to do, without locks, for aborted commands.
type Aborts struct {
	dead    []*Op // taken out of their queues: to be ended
	running []running
}

// running is a command whose data phase is to be cancelled.
type running struct {
	req  Request
	port Port
}

// abortLocked marks o aborted. One that has not started is taken out of its
// queue. Preconditions: s.mu is held and o is in the task set.
func (s *Tasks) abortLocked(o *Op, why AbortReason, w *Wait, set *Aborts) {
	o.markAbortedLocked(why)
	if w != nil {
		w.left.Add(1)
		o.waits = append(o.waits, w)
		if waits, on := s.copying[o.copying]; on { // it may go on behind o
			w.left.Add(1)
			s.copying[o.copying] = append(waits, w)
		}
	}
	switch o.state {
	case Dormant:
		s.dormant.remove(o)
		s.startLocked(o)
		set.dead = append(set.dead, o)
	case Queued:
		s.pool.dropLocked(o)
		o.to(Running)
		set.dead = append(set.dead, o)
	case Throttled:
		s.limit.dropLocked(o)
		o.to(Running)
		set.dead = append(set.dead, o)
	case Staging: // it leaves those who wait at Unstage
		o.to(Running)
		set.dead = append(set.dead, o)
	case Blocked:
		s.dropRangeLocked(o)
		o.unwaitLocked()
		o.to(Running)
		set.dead = append(set.dead, o)
	case Running:
		if o.hold.kind == HoldWrite {
			s.outliveLocked(o)
		}
		set.running = append(set.running, running{o.req, o.req.Via()})
	}
}

// Finish ends what has not started and cancels the data phase of the rest.
// Preconditions: no locks held.
func (a *Aborts) Finish() {
	for _, r := range a.running {
		r.req.Cancel(r.port)
	}
	for _, o := range a.dead {
		port := o.req.Via()
		o.req.Step(Abort)
		port.Push()
	}
}

// Mark marks every command of the task set aborted for which match gives a reason; w
// (nil: nobody waits) counts them. What is then left to do is in the result, whose
// Finish the caller calls. match is called with the lock of the set held.
func (s *Tasks) Mark(match func(*Op) AbortReason, w *Wait) (a Aborts) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.markLocked(match, w)
}

func (s *Tasks) markLocked(match func(*Op) AbortReason, w *Wait) (a Aborts) {
	for o := s.set.First(); o != nil; o = o.node.Next() {
		if why := match(o); why != NotAborted {
			s.abortLocked(o, why, w, &a)
		}
	}
	return a
}

// AbortWhere aborts every command of the task set for which match gives a reason; w
// counts them. Preconditions: no locks held.
func (s *Tasks) AbortWhere(match func(*Op) AbortReason, w *Wait) {
	a := s.Mark(match, w)
	a.Finish()
}

// AbortWith is AbortWhere that ends the copies of the clients that copiers accepts as well,
// as far as they touch the volume, wherever their commands are. Both are looked for in the
// same moment: the copy of a command that came between two looks would end although its
// command has not been aborted, and its client would be told of an error that nobody made.
// Both functions are called with the lock of the set held.
func (s *Tasks) AbortWith(match func(*Op) AbortReason, copiers func(*Client) bool, w *Wait) {
	s.mu.Lock()
	a := s.markLocked(match, w)
	s.stopCopiesLocked(copiers, w)
	s.mu.Unlock()
	a.Finish()
}

// By tells why a command of c ends when client by ends it among others.
func (c *Client) By(by *Client) AbortReason {
	if c == by {
		return AbortedByOwner
	}
	return AbortedByOther
}
