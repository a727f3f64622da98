package sockio

import (
	"testing"
	"time"
)

// A pollSim is an autoPoll on a clock of its own.
type pollSim struct {
	autoPoll
	now    time.Duration
	spent  time.Duration // in looks that failed, or took longer than what they have brought for the rest of a message is worth
	within bool          // what is waited for is the rest of a message
}

// wait lets bytes come after d: to a look where there is one and it lasts as
// long, else to a parked receiver.
func (s *pollSim) wait(d time.Duration) {
	if s.state == pollLooking {
		most := s.longest()
		if d <= most {
			s.now += d
			if d > pollSpin {
				s.spent += d
			}
			if s.within {
				s.more(s.now, d)
				s.spent += max(0, d-pollWorth)
			} else {
				s.hit(d)
			}
			s.woke(s.now, 0)
			return
		}
		s.now += most
		s.spent += most
		d -= most
		s.miss(s.now, most)
	}
	s.now += d
	s.woke(s.now, d)
}

func (s *pollSim) waits(n int, d time.Duration) {
	for range n {
		s.wait(d)
	}
}

const (
	quick = 20 * time.Microsecond // a look sees the answer
	slow  = 90 * time.Microsecond // it does not, and a wait seems to be short enough for one
	late  = 45 * time.Microsecond // a look sees it, and has taken longer than a wake-up
)

// Every arrow of the drawing, and what must not follow one.
func TestAutoPollStates(t *testing.T) {
	looking := func(s *pollSim) { s.waits(pollProof, quick) }
	resting := func(s *pollSim) { looking(s); s.miss(s.now, pollSpin) }
	const paid = int(pollTries * pollWorth / pollSpin) // looks in vain after as many tries as there are
	for _, c := range []struct {
		name string
		do   func(*pollSim)
		want pollState
	}{
		{"at first", func(*pollSim) {}, pollWatching},
		{"too few short waits", func(s *pollSim) { s.waits(pollProof-1, quick) }, pollWatching},
		{"short waits", looking, pollLooking},
		{"a long wait between them", func(s *pollSim) { s.waits(pollProof-1, quick); s.wait(time.Second); s.waits(pollProof-1, quick) }, pollWatching},
		{"another connection", func(s *pollSim) { looking(s); s.crowd(s.now) }, pollResting},
		{"another connection between them", func(s *pollSim) { s.waits(pollProof-1, quick); s.crowd(s.now); s.waits(pollProof-1, quick) }, pollWatching},
		{"a first look in vain", resting, pollResting},
		{"short waits in a rest", func(s *pollSim) { resting(s); s.waits(100, quick) }, pollResting},
		{"after a rest", func(s *pollSim) { resting(s); s.wait(pollRest) }, pollWatching},
		{"short waits after a rest", func(s *pollSim) { resting(s); s.wait(pollRest); looking(s) }, pollLooking},
		{"a look in vain that is paid for", func(s *pollSim) { looking(s); s.waits(pollTries, quick); s.wait(slow) }, pollLooking},
		{"as many as are paid for", func(s *pollSim) { looking(s); s.waits(pollTries, quick); s.waits(paid, slow) }, pollLooking},
		{"one more", func(s *pollSim) { looking(s); s.waits(pollTries, quick); s.waits(paid+1, slow) }, pollResting},
		// 100 KB each 70 µs are a paced stream of 11 Gb/s, which is not worth a core at each end.
		{"requests by the clock", func(s *pollSim) { looking(s); s.waits(1000, 70*time.Microsecond) }, pollResting},
		{"tries that are answered late", func(s *pollSim) { looking(s); s.waits(pollTries, slow) }, pollLooking},
		{"and one more such look", func(s *pollSim) { looking(s); s.waits(pollTries+1, slow) }, pollResting},
		{"waits that become shorter in a rest", func(s *pollSim) { resting(s); s.waits(40, slow); s.waits(pollProof, quick) }, pollLooking},
		{"the same, one wait too few", func(s *pollSim) { resting(s); s.waits(40, slow); s.waits(pollProof-1, quick); s.wait(slow) }, pollResting},
		{"the same, too early", func(s *pollSim) { resting(s); s.waits(5, slow); s.waits(pollProof, quick) }, pollResting},
		{"more than all savings", func(s *pollSim) { looking(s); s.waits(1000, quick); s.waits(int(pollCredit/pollSpin)+1, slow) }, pollResting},
		{"the rest of a message, soon", func(s *pollSim) { looking(s); s.within = true; s.waits(1000, quick) }, pollLooking},
		{"late", func(s *pollSim) { looking(s); s.waits(pollTries, quick); s.within = true; s.waits(7, late) }, pollLooking},
		{"late, once more than is paid for", func(s *pollSim) { looking(s); s.waits(pollTries, quick); s.within = true; s.waits(8, late) }, pollResting},
		{"late, in tries", func(s *pollSim) { looking(s); s.within = true; s.waits(pollTries, late) }, pollLooking},
		{"away, unpaid", func(s *pollSim) { looking(s); s.waits(10, quick); s.away(s.now, 4*time.Millisecond) }, pollResting},
		{"away, paid", func(s *pollSim) { looking(s); s.waits(160, quick); s.away(s.now, 4*time.Millisecond) }, pollLooking},
		{"away again, paid once", func(s *pollSim) {
			looking(s)
			s.waits(300, quick)
			s.away(s.now, 4*time.Millisecond)
			s.away(s.now, 4*time.Millisecond)
		}, pollResting},
	} {
		var s pollSim
		if c.do(&s); s.state != c.want {
			t.Errorf("%s: it is %v, want %v", c.name, s.state, c.want)
		}
	}
}

// Rests double up to a limit, and begin anew when looks have paid again.
func TestAutoPollRests(t *testing.T) {
	var s pollSim
	tired := func() time.Duration {
		for s.state != pollResting {
			s.wait(slow)
		}
		began := s.now
		for s.state == pollResting {
			s.wait(slow)
		}
		return (s.now - began).Round(time.Millisecond)
	}
	for want := pollRest; want < 4*pollRestMax; want *= 2 {
		if got := tired(); got != min(want, pollRestMax) {
			t.Fatalf("a rest of %v, want %v", got, min(want, pollRestMax))
		}
	}
	s.waits(pollProof+int(pollRest/pollWorth), quick)
	if got := tired(); got != pollRest {
		t.Errorf("a rest of %v after looks that paid, want %v", got, pollRest)
	}
}

// What looks in vain may cost, for peers of every speed: less than half a percent of
// the time, and what other looks have earned.
func TestAutoPollCost(t *testing.T) {
	for name, next := range map[string]func(i int) time.Duration{
		"always a bit late": func(int) time.Duration { return slow },
		"barely late":       func(int) time.Duration { return pollSpin + 1 },
		"far too late":      func(int) time.Duration { return 5 * time.Millisecond },
		"late now and then": func(i int) time.Duration { return []time.Duration{quick, quick, quick, slow}[i%4] },
		"late in turns":     func(i int) time.Duration { return []time.Duration{quick, slow}[i%2] },
		"late at times":     func(i int) time.Duration { return []time.Duration{quick, slow}[i/500%2] },
		"bulk":              func(int) time.Duration { return late },
	} {
		s := pollSim{within: name == "bulk"}
		var earned time.Duration
		for i := 0; s.now < 10*time.Second; i++ {
			was := s.state
			d := next(i)
			if s.wait(d); was == pollLooking && d <= pollSpin && !s.within {
				earned += pollWorth
			}
		}
		if most := earned + s.now/200; s.spent > most {
			t.Errorf("%s: %v of looks in vain in %v, want at most %v", name, s.spent, s.now, most)
		}
	}
}

// Beside others that use the processor up, looks go on only while they earn more
// between two slices than a slice.
func TestAutoPollHog(t *testing.T) {
	const slice = 4 * time.Millisecond
	for _, c := range []struct {
		name   string
		answer time.Duration
		least  time.Duration // share of the time in which it looks, of a second
		most   time.Duration
	}{
		{"quick answers", 10 * time.Microsecond, 400 * time.Millisecond, time.Second},
		{"answers that look for long", 45 * time.Microsecond, 0, 100 * time.Millisecond},
	} {
		var s pollSim
		var looked time.Duration
		for s.now < time.Second {
			for end := s.now + slice; s.now < end; {
				was, began := s.state, s.now
				if s.wait(c.answer); was == pollLooking {
					looked += s.now - began
				}
			}
			s.now += slice // the other's
			if s.state == pollLooking {
				s.away(s.now, slice)
			}
		}
		if looked < c.least || looked > c.most {
			t.Errorf("%s: %v of a second, want %v to %v", c.name, looked, c.least, c.most)
		}
	}
}
