package initiator

import (
	"time"

	"softiser/internal/list"
)

// reqQueue is a list of requests in order of arrival.
type reqQueue struct {
	list.List[request]
	n int
}

func (q *reqQueue) push(r *request) {
	q.Push(&r.node, r)
	q.n++
}

// remove takes r out; false: it is not there.
func (q *reqQueue) remove(r *request) bool {
	if !q.Remove(&r.node) {
		return false
	}
	q.n--
	return true
}

// taskList is a list of slots in order, linked by task.next.
type taskList struct{ head, tail int32 }

// backlog is what waits to be sent. The session's own commands (ctl) go ahead of those of users,
// and are sent even while recovery holds the latter back. The session's mutex guards it.
type backlog struct {
	tasks *table

	queue, ctlQueue   reqQueue // requests with commands still to start
	resend, ctlResend taskList // commands to be sent again, in order
	delayed           int      // commands in taskDelayed, which will be among them when due
}

// forget empties the lists of commands to be sent again. The caller takes care of their slots.
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

// delay has t sent again after a while, longer each time; false means that CommandTimeout is over.
func (b *backlog) delay(t *task) bool {
	s := t.sess
	limit := s.cfg.CommandTimeout
	now := s.clock.elapsed()
	if limit > 0 && time.Duration(now-t.started) >= limit {
		return false
	}
	wait := min(firstBackoff<<min(t.retries, 10), maxBackoff)
	if t.retries < 255 {
		t.retries++
	}
	s.stats.Retries++
	if !t.setState(taskDelayed) {
		return false
	}
	t.due = now + int64(jitter(wait))
	b.delayed++
	s.clock.nudge()
	return true
}
