package bench

import (
	"time"

	"softiser/initiator/blockio"
)

// slot is one place in the queue. What every operation uses comes first, in two lines of the cache
// and those of its request.
type slot struct {
	c        *clone
	next     *slot
	lun      LUN
	buf      []byte
	ext      extent
	d        dir
	held     bool          // ext waits to be submitted
	gated    bool          // parked until the clone's flow goes on
	inFlight bool          // the request has been submitted and not accounted
	start    time.Duration // when the slot began to prepare its operation
	issue    time.Duration // when it was handed to the session
	end      time.Duration // when Done was called
	ask      chan *Stats   // a slot that carries no operation: who wants to know the results
	req      blockio.Request
	due      time.Duration // while parked
}

// slotList is a queue of slots.
type slotList struct{ head, tail *slot }

func (l *slotList) push(s *slot) {
	if s.next = nil; l.tail == nil {
		l.head = s
	} else {
		l.tail.next = s
	}
	l.tail = s
}

// pop returns the oldest slot, or nil.
func (l *slotList) pop() *slot {
	s := l.head
	if s == nil {
		return nil
	}
	if l.head = s.next; l.head == nil {
		l.tail = nil
	}
	return s
}
