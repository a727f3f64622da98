package thin

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"softiser/lvm/internal/marks"
)

// alarms say that a pool fills up, and that it is full. The pool's mu guards them.
type alarms struct {
	notice func(string)   // see Config.Notice; may be nil
	marks  [2]marks.Marks // of data and metadata
	low    watchers       // who are told at the marks
	told   bool           // that the pool is full; until there is space again
}

// outOf tells, once until there is space again, that there is no data or metadata block left.
func (a *alarms) outOf(what string) {
	if a.told {
		return
	}
	a.told = true
	a.say("thin pool is out of %s space: writes that need more fail or wait until it is extended", what)
}

func (a *alarms) say(format string, args ...any) {
	if a.notice != nil {
		a.notice(fmt.Sprintf(format, args...))
	}
	a.low.tell()
}

// levels raises the alarms of marks that the use of either device has passed.
func (a *alarms) levels(data, meta *counts) {
	for i, c := range []*counts{data, meta} {
		if a.marks[i].Passed(c.used, c.n) {
			a.say("thin pool %s is now %.2f%% full", [...]string{"data", "metadata"}[i], float64(c.used)*100/float64(c.n))
		}
	}
}

// watchers have those who want to know how full the pool is. They have a lock
// of their own: they are called without the pool's.
type watchers struct {
	mu    sync.Mutex // guards subs and next
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
func (p *Pool) OnLowSpace(f func()) (cancel func()) { return p.alarms.low.add(f) }

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
