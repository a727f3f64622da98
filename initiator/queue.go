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

// pushResend puts a command last among those to be sent again.
func (s *Session) pushResend(t *task) {
	t.state, t.next = taskResend, none
	if s.resend.tail == none {
		s.resend.head = int32(t.index)
	} else {
		s.tasks.slots[s.resend.tail].next = int32(t.index)
	}
	s.resend.tail = int32(t.index)
}

// popResend takes the first of them, nil when there is none.
func (s *Session) popResend() *task {
	if s.resend.head == none {
		return nil
	}
	t := &s.tasks.slots[s.resend.head]
	s.resend.head = t.next
	if t.next == none {
		s.resend.tail = none
	}
	t.next = none
	return t
}

// dropResend takes a command out of the list.
func (s *Session) dropResend(t *task) {
	prev := int32(none)
	for i := s.resend.head; i != none; prev, i = i, s.tasks.slots[i].next {
		if i != int32(t.index) {
			continue
		}
		if prev == none {
			s.resend.head = t.next
		} else {
			s.tasks.slots[prev].next = t.next
		}
		if s.resend.tail == i {
			s.resend.tail = prev
		}
		t.next = none
		return
	}
}
