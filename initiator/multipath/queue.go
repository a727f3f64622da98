package multipath

import "softiser/internal/list"

// queue is a list of requests that wait, in order. Volume.mu guards it.
type queue struct {
	list.List[request]
	n int
}

func (l *queue) push(q *request) {
	l.Push(&q.node, q)
	q.where, q.list = waiting, l
	l.n++
}

func (l *queue) remove(q *request) {
	if l.Remove(&q.node) {
		l.n--
	}
}

// join appends o, which is empty then.
func (l *queue) join(o *queue) {
	for q := o.First(); q != nil; q = o.First() {
		o.remove(q)
		l.push(q)
	}
}

// take takes every request out, for one who goes on with them without the lock; until then
// they are at to.
func (l *queue) take(to where) []*request {
	taken := make([]*request, 0, l.n)
	for q := l.First(); q != nil; q = l.First() {
		l.remove(q)
		q.where = to
		taken = append(taken, q)
	}
	return taken
}

// endAll ends requests that have been taken.
func endAll(taken []*request, err error) {
	for _, q := range taken {
		q.end(err)
	}
}
