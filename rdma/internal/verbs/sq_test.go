package verbs

import "testing"

// An entry begins without what the last one there has left: it has not been sent up to any place.
func TestSlotIsEmpty(t *testing.T) {
	var q SendQueue
	q.Size(8)
	first := q.slot()
	first.Add(make([]byte, 8), 5)
	first.Status, first.Done, first.End = StatusFatal, true, 1000
	q.Tail++
	q.Head++
	first.release()
	e := q.slot()
	if e != first {
		t.Fatal("the queue does not begin anew")
	}
	if e.Status != StatusSuccess || e.Done || e.End != 0 || len(e.Segs) != 0 || len(e.LKeys) != 0 {
		t.Errorf("%+v", e)
	}
	q.Rest()
}
