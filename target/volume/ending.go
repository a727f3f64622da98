package volume

import "sync"

// ending tells something in the background, once, that it is to end at its next step. It is
// the blockdev.Stop of what that waits for.
type ending struct {
	once sync.Once
	done chan struct{} // closed: it is to end
}

// begin forgets an earlier stop. Preconditions: nobody looks at the ending.
func (e *ending) begin() { e.once, e.done = sync.Once{}, make(chan struct{}) }

// stop says that it is to end.
func (e *ending) stop() { e.once.Do(func() { close(e.done) }) }

// Done implements blockdev.Stop.
func (e *ending) Done() <-chan struct{} { return e.done }

// Stopped reports whether stop has been called.
func (e *ending) Stopped() bool {
	select {
	case <-e.done:
		return true
	default:
		return false
	}
}
