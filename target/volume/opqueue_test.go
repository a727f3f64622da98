package volume

import "testing"

func TestOpQueue(t *testing.T) {
	var ops [4]Op
	all := func(q *opQueue) (l []int) {
		var last *Op
		for o := q.head; o != nil; last, o = o, o.qnext {
			for i := range ops {
				if o == &ops[i] {
					l = append(l, i)
				}
			}
		}
		if q.tail != last {
			t.Errorf("the last of %v is not the tail", l)
		}
		return l
	}
	for gone := range ops { // each place in the queue: first, middle, last
		var q opQueue
		for i := range ops {
			q.push(&ops[i])
		}
		if !q.remove(&ops[gone]) || q.remove(&ops[gone]) {
			t.Errorf("op %d was not there, or still is", gone)
		}
		q.push(&ops[gone])
		for i, left := 0, all(&q); i < len(left); i++ {
			if o := q.pop(); o != &ops[left[i]] || o.qnext != nil {
				t.Errorf("pop %d of %v is another op, or it is still linked", i, left)
			}
			all(&q)
		}
		if q.head != nil || q.tail != nil {
			t.Error("the queue is not empty")
		}
	}
}
