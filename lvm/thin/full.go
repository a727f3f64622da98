package thin

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"softiser/blockdev"
)

// outOfSpace belongs to a pool that has no free block, dm-thin's
// "out of data space" mode. The pool's mu guards it.
type outOfSpace struct {
	since time.Time     // when the pool became full
	wake  chan struct{} // closed when there may be space again
	told  bool          // the log has it; until there is space again
}

// again lets those that wait try again.
func (o *outOfSpace) again() {
	close(o.wake)
	o.wake = make(chan struct{})
}

func (p *Pool) tell(what string) {
	if p.out.told {
		return
	}
	p.out.told = true
	p.notice("thin pool is out of %s space: writes that need more fail or wait until it is extended", what)
}

func (p *Pool) notice(format string, a ...any) {
	if p.cfg.Notice != nil {
		p.cfg.Notice(fmt.Sprintf(format, a...))
	}
	p.low.tell()
}

// waitSpaceLocked waits until there may be space; full is what to fail with when
// there is no more waiting. mu is given up while it waits. The time-out runs from
// when the pool ran out, not from when a write came: a full pool holds its
// writers once, and refuses at once from then on. stop may be nil.
func (p *Pool) waitSpaceLocked(full error, stop blockdev.Stop) error {
	if p.cfg.ErrorWhenFull {
		return full
	}
	now := time.Now()
	left := p.fullLocked(now).Add(p.cfg.FullWait).Sub(now)
	if left <= 0 {
		return full
	}
	ch := p.out.wake
	p.mu.Unlock()
	defer p.mu.Lock()
	var stopped <-chan struct{}
	if stop != nil {
		stopped = stop.Done()
	}
	// Nobody is woken up when a lease ends and its blocks become free: look again every second.
	t := time.NewTimer(min(left, time.Second))
	defer t.Stop()
	select {
	case <-ch:
	case <-t.C:
	case <-stopped:
	}
	// Space and stop may come at the same time: a write that was given up must not be done.
	select {
	case <-stopped:
		return blockdev.ErrStopped
	default:
		return nil
	}
}

// freedLocked is called when a volume has given blocks back.
func (p *Pool) freedLocked() {
	p.use.follow()
	if p.state == poolFull {
		p.out.again()
	}
}

// levelsLocked raises the alarms.
func (p *Pool) levelsLocked() {
	for i, m := range []*spaceMap{p.data, p.meta} {
		if p.marks[i].Passed(m.c.used, m.c.n) {
			p.notice("thin pool %s is now %.2f%% full", [...]string{"data", "metadata"}[i], float64(m.c.used)*100/float64(m.c.n))
		}
	}
}

// watchers have those who want to know how full the pool is. They have a lock
// of their own: they are called without the pool's.
type watchers struct {
	mu    sync.Mutex
	subs  map[int]func()
	next  int
	calls sync.WaitGroup

	awaited atomic.Bool // subs has some
	changed atomic.Bool // a call of followed is about to begin
	one     sync.Mutex  // held while followed calls
}

func (l *watchers) add(f func()) (cancel func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.subs == nil {
		l.subs = map[int]func(){}
	}
	k := l.next
	l.next++
	l.subs[k] = f
	l.awaited.Store(true)
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.subs, k)
		l.awaited.Store(len(l.subs) > 0)
	}
}

// OnLowSpace registers f to be called, on a goroutine of its own, when the use
// of data or metadata passes 80, 85, 90, 95 or 100 %, and when a write finds no
// space.
func (p *Pool) OnLowSpace(f func()) (cancel func()) { return p.low.add(f) }

// OnChange registers f to be called, on a goroutine of its own, after the
// number of data blocks in use or in all has changed. What changes before a
// call begins is one call.
func (p *Pool) OnChange(f func()) (cancel func()) { return p.use.add(f) }

// tell calls everybody, each on a goroutine of its own.
func (l *watchers) tell() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, f := range l.subs {
		l.calls.Go(f)
	}
}

// follow sees to it that everybody is called after what has just changed.
func (l *watchers) follow() {
	if l.awaited.Load() && !l.changed.Swap(true) {
		l.calls.Go(l.followed)
	}
}

func (l *watchers) followed() {
	l.one.Lock()
	defer l.one.Unlock()
	l.changed.Store(false) // a later change needs another round of calls
	l.mu.Lock()
	fs := slices.Collect(maps.Values(l.subs))
	l.mu.Unlock()
	for _, f := range fs {
		f()
	}
}
