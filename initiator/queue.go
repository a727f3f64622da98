package initiator

// reqQueue is a list of requests in order of arrival, linked by Request.next.
type reqQueue struct {
	head, tail *Request
	n          int
}

func (q *reqQueue) push(r *Request) {
	r.next = nil
	if q.tail == nil {
		q.head = r
	} else {
		q.tail.next = r
	}
	q.tail = r
	q.n++
}

// remove takes r out; nearly always it is the head.
func (q *reqQueue) remove(r *Request) bool {
	var prev *Request
	for x := q.head; x != nil; prev, x = x, x.next {
		if x != r {
			continue
		}
		if prev == nil {
			q.head = r.next
		} else {
			prev.next = r.next
		}
		if q.tail == r {
			q.tail = prev
		}
		r.next = nil
		q.n--
		return true
	}
	return false
}

// taskList is a list of slots in order, linked by task.next.
type taskList struct{ head, tail int32 }

// resendList is where a command that is to be sent again waits: the session's
// own go ahead, also while recovery holds the others back.
func (s *Session) resendList(t *task) *taskList {
	if t.ctl {
		return &s.ctlResend
	}
	return &s.resend
}

// pushResend puts a command last among those to be sent again.
func (s *Session) pushResend(t *task) {
	if !t.setState(taskResend) {
		return
	}
	q := s.resendList(t)
	t.next = none
	if q.tail == none {
		q.head = int32(t.index)
	} else {
		s.tasks.slots[q.tail].next = int32(t.index)
	}
	q.tail = int32(t.index)
}

// popResend takes the first of a list, nil when there is none.
func (s *Session) popResend(q *taskList) *task {
	if q.head == none {
		return nil
	}
	t := &s.tasks.slots[q.head]
	q.head = t.next
	if t.next == none {
		q.tail = none
	}
	t.next = none
	return t
}

// dropResend takes a command out of its list.
func (s *Session) dropResend(t *task) {
	q := s.resendList(t)
	prev := int32(none)
	for i := q.head; i != none; prev, i = i, s.tasks.slots[i].next {
		if i != int32(t.index) {
			continue
		}
		if prev == none {
			q.head = t.next
		} else {
			s.tasks.slots[prev].next = t.next
		}
		if q.tail == i {
			q.tail = prev
		}
		t.next = none
		return
	}
}
