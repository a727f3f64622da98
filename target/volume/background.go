package volume

import (
	"sync"
	"sync/atomic"
)

// background is the part of a volume that counts what goes on beside its commands. Who
// closes the volume, moves it or hands it over waits until nothing does.
type background struct {
	tasks    *Tasks
	medium   *medium
	counters *Counters

	users   atomic.Int64 // what goes on
	gone    atomic.Bool  // the last place of the volume has been removed: nothing new begins
	flushes flushes
}

// flushes are those of FlushBehind.
type flushes struct {
	mu   sync.Mutex
	next *Flushing // guarded by mu: asked for, and not begun; nil: none
	runs bool      // guarded by mu: a goroutine flushes, and looks for next afterwards
}

// Flushing is a flush of the device in the background.
type Flushing struct {
	over chan struct{} // closed when it is
	err  error         // of it; read after over
}

// Over reports whether the flush has ended, and how.
func (f *Flushing) Over() (over bool, err error) {
	select {
	case <-f.over:
		return true, f.err
	default:
		return false, nil
	}
}

// use keeps the volume open until unuse is called; it reports false when its last place has
// been removed.
func (b *background) use() bool {
	b.users.Add(1)
	if b.gone.Load() {
		b.users.Add(-1)
		return false
	}
	return true
}

// unuse ends a use.
func (b *background) unuse() {
	b.users.Add(-1)
	b.tasks.mu.Lock()
	b.tasks.tellFreezeLocked()
	b.tasks.mu.Unlock()
}

// FlushBehind flushes the device in the background: a flush that begins from now on, and that
// requests share which come before it begins. So any number of them cost one goroutine.
func (b *background) FlushBehind() *Flushing {
	l := &b.flushes
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.next == nil {
		l.next = &Flushing{over: make(chan struct{})}
	}
	f := l.next
	switch {
	case l.runs:
	case b.use():
		l.runs = true
		go b.flush()
	default: // whoever removed the last place flushes the device
		l.next = nil
		close(f.over)
	}
	return f
}

// flush makes the flushes that have been asked for, one after the other.
func (b *background) flush() {
	defer b.unuse()
	l := &b.flushes
	for {
		l.mu.Lock()
		f := l.next
		l.next, l.runs = nil, f != nil
		l.mu.Unlock()
		if f == nil {
			return
		}
		// An error is not lost where nobody asks for it: the device stays poisoned and tells the
		// next command that asks.
		if f.err = b.medium.dev.Flush(); f.err != nil {
			b.counters.CountError(f.err, Writing)
		}
		close(f.over)
	}
}
