package bench

import (
	"sync"
	"time"
)

const (
	tickLength = 100 * time.Millisecond // of the finest timeline
	maxTicks   = 600                    // beyond, two become one
)

// timeline is what a run has done over its time, for plots: all clones together, in ticks of
// equal length. A long run has longer ticks, not more.
type timeline struct {
	started time.Time

	mu    sync.Mutex // guards what follows
	per   int        // how many tickLength a tick stands for
	ticks []*tick
	end   time.Duration // of the last operation
}

// tick is what was done in one of them, by direction. A histogram is nil where nothing was.
type tick struct {
	bytes [datas]int64
	lat   [datas]*Histogram // completion latencies
}

func newTimeline(started time.Time) *timeline { return &timeline{started: started, per: 1} }

func (t *tick) merge(o *tick) {
	for d := range t.bytes {
		t.bytes[d] += o.bytes[d]
		mergeHist(&t.lat[d], o.lat[d])
	}
}

// merge enters what was done in the n-th tickLength of the run, the last of it at end.
func (t *timeline) merge(n int, o *tick, end time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.end = max(t.end, end)
	for n/t.per >= maxTicks {
		t.fold()
	}
	for len(t.ticks) <= n/t.per {
		t.ticks = append(t.ticks, new(tick))
	}
	t.ticks[n/t.per].merge(o)
}

// fold makes one of each two ticks.
func (t *timeline) fold() {
	t.per *= 2
	for i := 0; i < len(t.ticks); i += 2 {
		x := t.ticks[i]
		if i+1 < len(t.ticks) {
			x.merge(t.ticks[i+1])
		}
		t.ticks[i/2] = x
	}
	half := (len(t.ticks) + 1) / 2
	clear(t.ticks[half:])
	t.ticks = t.ticks[:half]
}

func (t *timeline) length() time.Duration { return time.Duration(t.per) * tickLength }

// ticker is a clone's part of a timeline: the tick that it is in. Its runner has it alone.
type ticker struct {
	of    *timeline
	since time.Duration // from the start of the run to the clone's epoch
	n     int
	now   tick
	last  time.Duration
}

func (t *timeline) ticker(epoch time.Time) *ticker {
	return &ticker{of: t, since: epoch.Sub(t.started)}
}

// add enters an operation that has ended at now, counted from the clone's epoch.
func (s *ticker) add(now time.Duration, d dir, n int, clat int64) {
	s.last = max(s.since+now, s.last)
	if i := int(s.last / tickLength); i != s.n {
		s.flush()
		s.n = i
	}
	s.now.bytes[d] += int64(n)
	h := s.now.lat[d]
	if h == nil {
		h = new(Histogram)
		s.now.lat[d] = h
	}
	h.Add(clat)
}

// flush hands on what the tick has had.
func (s *ticker) flush() {
	s.of.merge(s.n, &s.now, s.last)
	for d, h := range s.now.lat {
		s.now.bytes[d] = 0
		if h != nil {
			*h = Histogram{}
		}
	}
}
