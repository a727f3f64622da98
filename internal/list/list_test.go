package list

import (
	"math/rand/v2"
	"slices"
	"testing"

	"softiser/internal/alloctest"
)

type item struct {
	id   int
	node Node[item]
}

func ids(l *List[item]) (got []int) {
	for e := l.First(); e != nil; e = e.node.Next() {
		got = append(got, e.id)
	}
	return got
}

// A list does what a slice does, whichever element goes.
func TestModel(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var l, other List[item]
	var model []*item
	all := make([]item, 8)
	for i := range all {
		all[i].id = i
	}
	for range 10_000 {
		e := &all[r.IntN(len(all))]
		at := slices.Index(model, e)
		if at < 0 && r.IntN(2) == 0 {
			l.Push(&e.node, e)
			model = append(model, e)
		} else {
			if other.Remove(&e.node) {
				t.Fatal("taken out of a list that it is not in")
			}
			if got := l.Remove(&e.node); got != (at >= 0) {
				t.Fatalf("removed: %v, it is at %d", got, at)
			}
			if at >= 0 {
				model = slices.Delete(model, at, at+1)
			}
		}
		var want []int
		for _, e := range model {
			want = append(want, e.id)
		}
		if got := ids(&l); !slices.Equal(got, want) || l.Empty() != (len(want) == 0) {
			t.Fatalf("%v, want %v", got, want)
		}
	}
}

func TestNothingIsAllocated(t *testing.T) {
	var l List[item]
	var e item
	if n := alloctest.PerRun(100, func() { l.Push(&e.node, &e); l.Remove(&e.node) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// Who leaves takes those in front of it along, once.
func TestRemoveThrough(t *testing.T) {
	var l List[item]
	all := make([]item, 5)
	for i := range all {
		all[i].id = i
		l.Push(&all[i].node, &all[i])
	}
	for _, step := range []struct {
		id   int
		ok   bool
		want []int
	}{{2, true, []int{3, 4}}, {1, false, []int{3, 4}}, {2, false, []int{3, 4}}, {3, true, []int{4}}, {4, true, nil}} {
		if ok := l.RemoveThrough(&all[step.id].node); ok != step.ok || !slices.Equal(ids(&l), step.want) {
			t.Errorf("through %d: %v, %v are left", step.id, ok, ids(&l))
		}
	}
}
