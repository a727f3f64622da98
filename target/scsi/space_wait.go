package scsi

import "softiser/blockdev"

// Writes may wait for space, those to a volume of a thin pool that is full. Such a wait ends
// with the command or the copy that it is for: what an initiator that is gone has
// left waiting must not come over what others have written since.

// stop is the task as far as it ends a wait for space.
func (t *Task) stop() blockdev.Stop { return (*taskStop)(t) }

type taskStop Task

// Done implements blockdev.Stop: it is closed when the task is aborted.
func (s *taskStop) Done() <-chan struct{} {
	t := (*Task)(s)
	t.lu.mu.Lock()
	defer t.lu.mu.Unlock()
	if t.ended == nil {
		t.ended = make(chan struct{})
		if t.isAborted() {
			close(t.ended)
		}
	}
	return t.ended
}

// markAbortedLocked notes why a task ends, and ends what it waits for: space, or its copy.
func (t *Task) markAbortedLocked(why abortReason) {
	if !t.isAborted() && t.ended != nil {
		close(t.ended)
	}
	if !t.isAborted() || why == abortedByOwner {
		t.aborted.Store(uint32(why))
	}
	if t.copying != nil {
		t.copying.stop()
	}
}

// writeAt is WriteAt of the volume; stop ends a wait for space.
func (lu *LU) writeAt(p []byte, off int64, stop blockdev.Stop) error {
	var err error
	if w, ok := lu.vol.(blockdev.SpaceWaiter); ok {
		_, err = w.WriteAtUntil(p, off, stop)
	} else {
		_, err = lu.vol.WriteAt(p, off)
	}
	return err
}

func (lu *LU) writeZeroes(off, n int64, mayUnmap bool, stop blockdev.Stop) error {
	if w, ok := lu.vol.(blockdev.SpaceWaiter); ok {
		return w.WriteZeroesUntil(off, n, mayUnmap, stop)
	}
	return lu.vol.WriteZeroes(off, n, mayUnmap)
}

func (lu *LU) discard(off, n int64, stop blockdev.Stop) error {
	if w, ok := lu.vol.(blockdev.SpaceWaiter); ok {
		return w.DiscardUntil(off, n, stop)
	}
	return lu.vol.Discard(off, n)
}
