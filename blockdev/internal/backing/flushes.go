package backing

import "sync"

// flushes are the flushes of a block device's cache, one at a time: each does for everybody whose
// data had been written when it began.
//
//	mine     written · · |=========|     the next one that begins
//	flushes  |===========|=========|
//
// The zero value is ready.
type flushes struct {
	mu      sync.Mutex // guards what follows; a leaf
	begun   uint64
	ended   uint64    // the flushes up to this one are over
	changed sync.Cond // on mu: one is over; its L is set by the first who waits
}

// join returns when a flush has succeeded that began after the call, made by flush or by that of somebody
// else; or when its own has failed, which then was none for the others.
func (f *flushes) join(flush func() error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.changed.L == nil {
		f.changed.L = &f.mu
	}
	for mine := f.begun + 1; f.ended < mine; {
		if f.begun != f.ended {
			f.changed.Wait()
			continue
		}
		f.begun++
		f.mu.Unlock()
		err := flush()
		f.mu.Lock()
		f.changed.Broadcast()
		if err != nil {
			f.begun--
			return err
		}
		f.ended = f.begun
	}
	return nil
}
