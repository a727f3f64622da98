// Package inorder tells somebody what has come about: one thing at a time, in the order in which
// it has, although those who know of it are on many goroutines and must not call under their
// locks.
package inorder

import "sync"

// Teller has events told by whoever asks for it first.
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

// Put adds an event, which Tell will tell. What orders events is the lock under which their
// causes came about: the caller holds it.
func (t *Teller[E]) Put(e E) {
	if t.f == nil {
		return
	}
	t.mu.Lock()
	t.queue = append(t.queue, e)
	t.mu.Unlock()
}

// Tell tells what there is, without a lock of the caller's held. If somebody does already, it is
// left to him, and Tell does not wait.
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

// Wait returns when all is told that has been put.
func (t *Teller[E]) Wait() {
	t.Tell()
	t.mu.Lock()
	defer t.mu.Unlock()
	for t.telling {
		t.quiet.Wait()
	}
}
