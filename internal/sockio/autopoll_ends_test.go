package sockio

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// pollEnd is one of two ends that answer each other at once.
type pollEnd struct {
	autoPoll
	waits time.Duration // since when
}

// arrival lets a message come at t to an end that has waited, and returns when that has
// it: at once when it looks, else after the time that it takes to wake a processor up.
func (e *pollEnd) arrival(t, wake time.Duration) time.Duration {
	parked := e.waits
	if e.state == pollLooking {
		longest := e.longest()
		if t-e.waits <= longest {
			e.hit(t - e.waits)
			e.woke(t, 0)
			return t
		}
		parked += longest
		e.miss(parked, longest)
	}
	t = max(t, parked) + wake
	e.woke(t, t-parked)
	return t
}

// pingPong lets two ends answer each other for d, and returns the round trips from short to
// long. Each hiccup takes the processor away from one end, in a look, for so long that it
// does not pay.
func pingPong(d, serve time.Duration, hiccups []time.Duration, wake func() time.Duration) []time.Duration {
	var ends [2]pollEnd
	var trips []time.Duration
	now, began := time.Duration(0), time.Duration(0)
	for i := 0; now < d; i++ {
		e := &ends[i%2]
		if len(hiccups) > 0 && now >= hiccups[0] {
			hiccups = hiccups[1:]
			e.tire(now)
		}
		now = e.arrival(now, wake()) + serve
		e.waits = now
		if i%2 == 1 {
			trips = append(trips, now-began)
			began = now
		}
	}
	slices.Sort(trips)
	return trips
}

// Whatever a wake-up costs, two ends that answer at once find to each other in each of ten
// runs, also after one of them has been interrupted: the medians of the runs are
// within half of each other, and so are the 99th percentiles of those without interruption.
func TestAutoPollBothEnds(t *testing.T) {
	const serve, run = 5 * time.Microsecond, 100 * time.Millisecond
	for wake := 10 * time.Microsecond; wake <= 100*time.Microsecond; wake += 15 * time.Microsecond {
		rnd := rand.New(rand.NewPCG(1, uint64(wake)))
		var p50, p99 []time.Duration
		for i := range 10 {
			var hiccups []time.Duration
			if i%2 == 1 {
				hiccups = []time.Duration{time.Duration(rnd.Int64N(int64(run / 4)))}
			}
			trips := pingPong(run, serve, hiccups, func() time.Duration {
				return wake/2 + time.Duration(rnd.Int64N(int64(wake)))
			})
			p50 = append(p50, trips[len(trips)/2])
			if hiccups == nil {
				p99 = append(p99, trips[len(trips)*99/100])
			}
		}
		if 2*slices.Max(p50) > 3*slices.Min(p50) || 2*slices.Max(p99) > 3*slices.Min(p99) {
			t.Errorf("a wake-up of %v: medians of %v to %v, 99th percentiles of %v to %v", wake, slices.Min(p50), slices.Max(p50), slices.Min(p99), slices.Max(p99))
		}
	}
}
