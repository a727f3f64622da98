package initiator

// reqQueue is a list of requests in order of arrival, linked by Request.next.
type reqQueue struct {
	head, tail *request
	n          int
}

func (q *reqQueue) push(r *request) {
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
func (q *reqQueue) remove(r *request) bool {
	var prev *request
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

// backlog is what waits to be sent. The session's own goes ahead of the users', also while
// recovery holds those back. The session's mutex guards it.
type backlog struct {
	tasks *table

	queue, ctlQueue   reqQueue // requests with commands still to start
	resend, ctlResend taskList // commands to be sent again, in order
	delayed           int      // commands in taskDelayed, which will be among them when due
}

// forget empties the lists of commands to be sent again; their slots are whoever calls'.
func (b *backlog) forget() { b.resend, b.ctlResend = taskList{none, none}, taskList{none, none} }

// resendList is where a command that is to be sent again waits.
func (b *backlog) resendList(t *task) *taskList {
	if t.ctl {
		return &b.ctlResend
	}
	return &b.resend
}

// pushResend puts a command last among those to be sent again.
func (b *backlog) pushResend(t *task) {
	if !t.setState(taskResend) {
		return
	}
	q := b.resendList(t)
	t.next = none
	if q.tail == none {
		q.head = int32(t.index)
	} else {
		b.tasks.slots[q.tail].next = int32(t.index)
	}
	q.tail = int32(t.index)
}

// popResend takes the first of a list, nil when there is none.
func (b *backlog) popResend(q *taskList) *task {
	if q.head == none {
		return nil
	}
	t := &b.tasks.slots[q.head]
	q.head = t.next
	if t.next == none {
		q.tail = none
	}
	t.next = none
	return t
}

// dropResend takes a command out of its list.
func (b *backlog) dropResend(t *task) {
	q := b.resendList(t)
	prev := int32(none)
	for i := q.head; i != none; prev, i = i, b.tasks.slots[i].next {
		if i != int32(t.index) {
			continue
		}
		if prev == none {
			q.head = t.next
		} else {
			b.tasks.slots[prev].next = t.next
		}
		if q.tail == i {
			q.tail = prev
		}
		t.next = none
		return
	}
}
