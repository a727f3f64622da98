package volume

import "sync/atomic"

// Wait is one task management function that waits for commands to end.
type Wait struct {
	left atomic.Int32 // commands that have not ended, and one for the goroutine that counts them
	done func()
}

// NewWait makes a wait whose creator holds one count of it, so that done is not called
// before the creator has called Done.
func NewWait(done func()) *Wait {
	w := &Wait{done: done}
	w.left.Store(1)
	return w
}

// Done takes one count away, and calls the function with the last one.
func (w *Wait) Done() {
	if w.left.Add(-1) == 0 {
		w.done()
	}
}

// Waits are those that wait for one command.
type Waits []*Wait

// Done tells all of them. No locks are held.
func (ws Waits) Done() {
	for _, w := range ws {
		w.Done()
	}
}
