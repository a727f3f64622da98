package iser

import (
	"sync"

	"softiser/internal/iscsi"
)

// completions are the transfers of a connection that are over, until the upper layer has been
// told of them. Guarded by Conn.mu, which is not held during the up-calls.
type completions struct {
	xferList
	moving  int64     // transfers that are not over, or in the list
	telling int       // goroutines that make up-calls
	told    sync.Cond // on Conn.mu: one of them has returned
}

// take takes the transfers that are over; after the up-calls for them finished is due.
func (q *completions) take() *iscsi.Transfer {
	x := q.xferList.take()
	if x != nil {
		q.moving -= int64(x.Linked())
		q.telling++
	}
	return x
}

// finished enters that the up-calls of a take have been made.
func (q *completions) finished() {
	q.telling--
	q.told.Broadcast()
}

// wait waits until all up-calls have been made.
func (q *completions) wait() {
	for q.telling > 0 {
		q.told.Wait()
	}
}

// idle reports whether there is nothing to tell of, and nobody who does.
func (q *completions) idle() bool { return q.head == nil && q.telling == 0 }

// xferList is a queue of completed transfers.
type xferList struct{ head, tail *iscsi.Transfer }

func (l *xferList) put(x *iscsi.Transfer) {
	x.Own.Next = nil
	if l.tail == nil {
		l.head = x
	} else {
		l.tail.Own.Next = x
	}
	l.tail = x
}

func (l *xferList) take() *iscsi.Transfer {
	x := l.head
	l.head, l.tail = nil, nil
	return x
}
