package volume

import "softiser/blockdev"

// Writes may wait for space, those to a device of a thin pool that is full. Such a wait ends
// with the command or the copy that it is for: what an initiator that is gone has
// left waiting must not come over what others have written since.

// Stop is the op as far as it ends a wait for space.
func (o *Op) Stop() blockdev.Stop { return (*opStop)(o) }

type opStop Op

// Done implements blockdev.Stop: it is closed when the command is aborted.
func (p *opStop) Done() <-chan struct{} {
	o := (*Op)(p)
	o.set.mu.Lock()
	defer o.set.mu.Unlock()
	if o.ended == nil {
		o.ended = make(chan struct{})
		if o.Aborted() {
			close(o.ended)
		}
	}
	return o.ended
}

// markAbortedLocked notes why a command ends, and ends what it waits for: space, or its copy.
func (o *Op) markAbortedLocked(why AbortReason) {
	if !o.Aborted() && o.ended != nil {
		close(o.ended)
	}
	if !o.Aborted() || why == AbortedByOwner {
		o.aborted.Store(uint32(why))
	}
	if o.copying != nil {
		o.copying.stop()
	}
}
