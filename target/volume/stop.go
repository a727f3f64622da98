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

// WriteAt is WriteAt of the device; stop ends a wait for space. Marked blocks are readable
// afterwards, as they are after WriteZeroes and Discard.
func (v *Volume) WriteAt(p []byte, off int64, stop blockdev.Stop) error {
	if err := v.write(p, off, stop); err != nil {
		return err
	}
	return v.mend(off, int64(len(p)))
}

// write is WriteAt that leaves marks as they are.
func (b *badBlocks) write(p []byte, off int64, stop blockdev.Stop) error {
	v := b.vol
	var err error
	if w, ok := v.dev.(blockdev.SpaceWaiter); ok {
		_, err = w.WriteAtUntil(p, off, stop)
	} else {
		_, err = v.dev.WriteAt(p, off)
	}
	return err
}

// WriteZeroes is WriteZeroes of the device; stop ends a wait for space.
func (v *Volume) WriteZeroes(off, n int64, mayUnmap bool, stop blockdev.Stop) error {
	if err := v.zero(off, n, mayUnmap, stop); err != nil {
		return err
	}
	return v.mend(off, n)
}

// zero is WriteZeroes that leaves marks as they are.
func (b *badBlocks) zero(off, n int64, mayUnmap bool, stop blockdev.Stop) error {
	v := b.vol
	if w, ok := v.dev.(blockdev.SpaceWaiter); ok {
		return w.WriteZeroesUntil(off, n, mayUnmap, stop)
	}
	return v.dev.WriteZeroes(off, n, mayUnmap)
}

// Discard is Discard of the device; stop ends a wait for space.
func (v *Volume) Discard(off, n int64, stop blockdev.Stop) (err error) {
	if w, ok := v.dev.(blockdev.SpaceWaiter); ok {
		err = w.DiscardUntil(off, n, stop)
	} else {
		err = v.dev.Discard(off, n)
	}
	if err != nil {
		return err
	}
	return v.mend(off, n)
}
