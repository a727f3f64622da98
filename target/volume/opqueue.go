package volume

// workQueue holds the ops that wait for a worker, except short reads (see reads). Ops that
// commit go before the others. The zero value is empty.
type workQueue struct{ commits, others opQueue }

// of returns the queue that o belongs in.
func (q *workQueue) of(o *Op) *opQueue {
	if o.commits {
		return &q.commits
	}
	return &q.others
}

// head returns what pop would, or nil.
func (q *workQueue) head() *Op {
	if q.commits.head != nil {
		return q.commits.head
	}
	return q.others.head
}

// pop takes out what is next, which must be there.
func (q *workQueue) pop() *Op { return q.of(q.head()).pop() }

// opQueue is a FIFO of ops, linked by qnext: an op is in one queue at a time. The zero value is
// empty. Tasks.mu guards it.
type opQueue struct{ head, tail *Op }

// push puts o last.
func (q *opQueue) push(o *Op) {
	o.qnext = nil
	if q.tail == nil {
		q.head = o
	} else {
		q.tail.qnext = o
	}
	q.tail = o
}

// pop takes the first op out, which must be there.
func (q *opQueue) pop() *Op {
	o := q.head
	q.removeBehind(nil, o)
	return o
}

// remove takes o out and reports whether it was there.
func (q *opQueue) remove(o *Op) bool {
	var prev *Op
	for x := q.head; x != nil; prev, x = x, x.qnext {
		if x == o {
			q.removeBehind(prev, o)
			return true
		}
	}
	return false
}

// removeBehind takes o out, which is behind prev, or first when prev is nil.
func (q *opQueue) removeBehind(prev, o *Op) {
	if prev == nil {
		q.head = o.qnext
	} else {
		prev.qnext = o.qnext
	}
	if q.tail == o {
		q.tail = prev
	}
	o.qnext = nil
}
