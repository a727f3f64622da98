// Package inorder delivers events to a callback one at a time and in order, although they come
// from many goroutines, none of which may call it while holding a lock.
//
//	under the lock that orders the events   Put
//	after it has been released              Tell, which runs the callback for all that was put
package inorder

import "sync"

// Teller delivers events on whichever goroutine calls Tell first.
type Teller[E any] struct {
	f func(E) // nil: nobody wants to know

	mu      sync.Mutex // guards the rest; a leaf
	queue   []E
	telling bool
	quiet   *sync.Cond // telling has ended
}

// New makes a Teller that calls f.
func New[E any](f func(E)) *Teller[E] {
	t := &Teller[E]{f: f}
	t.quiet = sync.NewCond(&t.mu)
	return t
}

// Put adds an event for Tell. Events are ordered by the caller's lock, under which they
// happened and which it still holds.
func (t *Teller[E]) Put(e E) {
	if t.f == nil {
		return
	}
	t.mu.Lock()
	t.queue = append(t.queue, e)
	t.mu.Unlock()
}

// Tell delivers what was put; the caller holds no lock. If another goroutine is delivering, that
// one goes on with it, and Tell returns at once.
func (t *Teller[E]) Tell() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.telling {
		return
	}
	t.telling = true
	for len(t.queue) > 0 {
		all := t.queue
		t.queue = nil
		t.mu.Unlock()
		for _, e := range all {
			t.f(e)
		}
		t.mu.Lock()
	}
	t.telling = false
	t.quiet.Broadcast()
}

// Wait returns when everything that was put has been delivered.
func (t *Teller[E]) Wait() {
	t.Tell()
	t.mu.Lock()
	defer t.mu.Unlock()
	for t.telling {
		t.quiet.Wait()
	}
}
