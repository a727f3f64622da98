package volume

import "sync/atomic"

// background is the part of a volume that counts what goes on beside its commands. Who
// closes the volume, moves it or hands it over waits until nothing does.
type background struct {
	tasks    *Tasks
	medium   *medium
	counters *Counters

	users   atomic.Int64 // what goes on
	gone    atomic.Bool  // the last place of the volume has been removed: nothing new begins
	flushes atomic.Int64 // requests for FlushBehind
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

// FlushBehind flushes the device in the background; any number of requests cost
// one goroutine.
func (b *background) FlushBehind() {
	if b.flushes.Add(1) > 1 {
		return // the running one goes round again
	}
	if !b.use() {
		b.flushes.Store(0) // whoever removed the last place flushes the device
		return
	}
	go func() {
		defer b.unuse()
		for {
			n := b.flushes.Load()
			// An error is not lost: the device stays poisoned and tells the next
			// command that asks.
			if err := b.medium.dev.Flush(); err != nil {
				b.counters.CountError(err, Writing)
			}
			if b.flushes.CompareAndSwap(n, 0) {
				return
			}
		}
	}()
}
