package nvmf

import "softiser/internal/list"

// waitList is the requests with commands still to start, in order.
type waitList struct {
	list.List[request]
	n int
}

func (l *waitList) push(r *request) {
	l.Push(&r.node, r)
	l.n++
}

// remove takes r out, if it is there.
func (l *waitList) remove(r *request) {
	if l.Remove(&r.node) {
		l.n--
	}
}

// requests is a chain of requests, linked by next, that is taken whole.
type requests struct{ head, tail *request }

func (l *requests) push(r *request) {
	r.next = nil
	if l.tail == nil {
		l.head = r
	} else {
		l.tail.next = r
	}
	l.tail = r
}

// commands is a list of commands, linked by next.
type commands struct{ head, tail *command }

func (l *commands) push(c *command) {
	c.next = nil
	if l.tail == nil {
		l.head = c
	} else {
		l.tail.next = c
	}
	l.tail = c
}

func (l *commands) pop() *command {
	c := l.head
	if l.head = c.next; l.head == nil {
		l.tail = nil
	}
	c.next = nil
	return c
}
