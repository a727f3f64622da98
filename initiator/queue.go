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

func (s *Session) pushResend(t *task) {
	t.next = none
	if s.resend.tail == none {
		s.resend.head = int32(t.index)
	} else {
		s.tasks.slots[s.resend.tail].next = int32(t.index)
	}
	s.resend.tail = int32(t.index)
}

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
