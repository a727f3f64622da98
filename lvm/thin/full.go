package thin

import (
	"fmt"
	"sync"
	"time"
)

// outOfSpace is the state of a pool that has no free block, dm-thin's
// "out of data space" mode. The pool's mu guards it.
type outOfSpace struct {
	since time.Time     // zero: there is space
	wake  chan struct{} // closed when there may be space again
	told  bool
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

// waitSpaceLocked waits until there may be space, and reports whether to try
// again; mu is given up while it waits. The time-out runs from when the pool
// ran out, not from when a write came: a full pool holds its writers once, and
// refuses at once from then on.
func (p *Pool) waitSpaceLocked() bool {
	if p.cfg.ErrorWhenFull {
		return false
	}
	now := time.Now()
	if p.out.since.IsZero() {
		p.out.since = now
	}
	left := p.out.since.Add(p.cfg.FullWait).Sub(now)
	if left <= 0 {
		return false
	}
	ch := p.out.wake
	p.mu.Unlock()
	defer p.mu.Lock()
	// Blocks that open leases still hold come free without a word.
	t := time.NewTimer(min(left, time.Second))
	defer t.Stop()
	select {
	case <-ch:
	case <-t.C:
	}
	return true
}

// freedLocked is called when a volume has given blocks back.
func (p *Pool) freedLocked() {
	if !p.out.since.IsZero() {
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

// lowSpace has those who want to know that the pool fills up. It has a lock of
// its own: they are called without the pool's.
type lowSpace struct {
	mu    sync.Mutex
	subs  map[int]func()
	next  int
	calls sync.WaitGroup
}

// OnLowSpace registers f to be called, on a goroutine of its own, when the use
// of data or metadata passes 80, 85, 90, 95 or 100 %, and when a write finds no
// space.
func (p *Pool) OnLowSpace(f func()) (cancel func()) {
	l := &p.low
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.subs == nil {
		l.subs = map[int]func(){}
	}
	k := l.next
	l.next++
	l.subs[k] = f
	return func() { l.mu.Lock(); delete(l.subs, k); l.mu.Unlock() }
}

func (l *lowSpace) tell() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, f := range l.subs {
		l.calls.Go(f)
	}
}
