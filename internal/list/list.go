// Package list has a list whose links are in its elements: to put one in allocates nothing,
// and to take one out costs the same wherever it is.
//
// It is for elements that are taken out of the middle, or asked whether they are there.
// Chains that are only pushed and taken whole (completions on their way to an up-call, free
// lists) need one link, which the same element uses for one after another, and lists of
// slots by index keep numbers instead of pointers: those are where they are used.
package list

// Node is the link of an element in one list at a time.
type Node[T any] struct {
	next, prev *Node[T]
	in         *List[T]
	elem       *T
}

// Next returns the element behind n's; nil at the end.
func (n *Node[T]) Next() *T {
	if n.next == nil {
		return nil
	}
	return n.next.elem
}

// List is a list of elements in the order in which they were pushed. The zero value is
// empty. It must not be copied while it has elements.
type List[T any] struct{ first, last *Node[T] }

// First returns the oldest element; nil when there is none.
func (l *List[T]) First() *T {
	if l.first == nil {
		return nil
	}
	return l.first.elem
}

// Empty reports whether there is no element.
func (l *List[T]) Empty() bool { return l.first == nil }

// Push puts e, whose link is n and is in no list, last.
func (l *List[T]) Push(n *Node[T], e *T) {
	*n = Node[T]{prev: l.last, in: l, elem: e}
	if l.last == nil {
		l.first = n
	} else {
		l.last.next = n
	}
	l.last = n
}

// Remove takes the element of n out. It reports false when that is not in l.
func (l *List[T]) Remove(n *Node[T]) bool {
	if n.in != l {
		return false
	}
	if n.prev == nil {
		l.first = n.next
	} else {
		n.prev.next = n.next
	}
	if n.next == nil {
		l.last = n.prev
	} else {
		n.next.prev = n.prev
	}
	*n = Node[T]{}
	return true
}

// RemoveThrough takes out the element of n and all in front of it. It reports false, and takes
// out none, when that is not in l.
func (l *List[T]) RemoveThrough(n *Node[T]) bool {
	if n.in != l {
		return false
	}
	for l.first != nil && l.first != n {
		l.Remove(l.first)
	}
	return l.Remove(n)
}
