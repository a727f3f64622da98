package sockio

import "time"

// Limits of BusyPollAuto.
const (
	pollSpin    = 50 * time.Microsecond  // longest look
	pollTry     = 150 * time.Microsecond // longest try: the other end has to be woken up, too
	pollTries   = 6                      // tries before the looks proper
	pollShort   = 250 * time.Microsecond // a wait, the wake-ups of both ends included, that looks could shorten
	pollProof   = 4                      // short waits in a row before the first try
	pollWorth   = 25 * time.Microsecond  // what a look that succeeds saves: a wake-up
	pollCredit  = 500 * time.Microsecond // most that savings can pay of looks that fail
	pollAway    = 200 * time.Microsecond // between two tries of a look: the processor was taken away
	pollRest    = 10 * time.Millisecond  // first rest after looks that did not pay
	pollRestMax = 320 * time.Millisecond // and the longest; it doubles in between
)

// autoPoll decides, wait by wait, whether a receiver looks for a while before it
// parks, as adaptive mutexes and the halt polling of hypervisors do.
//
//	                       4 short waits
//	┌──────────┐ ────────────────────────────────────▶ ┌─────────┐
//	│ watching │                                       │ looking │
//	└──────────┘                                       └─────────┘
//	      ▲                    waits have become shorter ▲   │ looks did not pay;
//	      │                                              │   │ another connection
//	      │        10 ms, then 20 ... 320 ms   ┌─────────┐   │ is at work
//	      └─────────────────────────────────── │ resting │ ◀─┘
//	                                           └─────────┘
//
// Both ends have to look for a wait to be short. As long as one of them parks, the other
// waits for its wake-up, which may well last longer than a look. So the first looks are
// tries, long enough for that; and an end at rest whose waits become shorter by a quarter
// joins in, because the other end has probably begun to try. Without these two, ends for
// whom a wake-up takes about as long as a look found to each other by chance, or never.
//
// How many messages end a wait does not matter: at queue depth 4 a wake-up that serves
// four costs as much as it does at depth 1, and both ends pay it in turn.
//
// Looks pay for themselves. One that succeeds earns a wake-up, less its time when it is for the
// rest of a message; one that fails costs its time; and when the processor was taken away during a look, as the scheduler
// does with those who use it while others wait, what looks have earned since the
// last such time must be worth the time lost. So looks in vain cost less than half a
// percent of a processor (the tries in the longest rest), and soon next to nothing.
//
// It is a pure state machine: times are those of any one monotonic clock.
type autoPoll struct {
	state  pollState
	proof  int           // watching: short waits seen in a row
	until  time.Duration // resting: when it ends
	rest   time.Duration // length of the last rest; 0 when looks have earned a rest since
	usual  time.Duration // resting: how long waits have been of late
	tries  int           // looking: tries left
	credit time.Duration // looking: earned and not spent on looks in vain, at most pollCredit
	earned time.Duration // looking: earned since the processor was last taken away
}

type pollState uint8

const (
	pollWatching pollState = iota
	pollLooking
	pollResting
)

func (s pollState) String() string {
	return [...]string{"watching", "looking", "resting"}[s]
}

// to is the only place where the state changes.
func (p *autoPoll) to(s pollState) {
	p.state = s
	p.proof = 0
	p.tries = pollTries
}

// woke enters that bytes have arrived after the receiver was parked for d; 0 for d when
// a look found them.
func (p *autoPoll) woke(now, d time.Duration) {
	switch {
	case p.state == pollResting:
		p.rested(now, d)
	case p.state == pollWatching && d > pollShort:
		p.proof = 0
	case p.state == pollWatching:
		if p.proof++; p.proof == pollProof {
			p.to(pollLooking)
		}
	}
}

// rested is woke in a rest.
func (p *autoPoll) rested(now, d time.Duration) {
	switch {
	case now >= p.until:
		p.to(pollWatching)
	case p.usual == 0:
		p.usual = d
	case d > p.usual*3/4:
		p.usual += (d - p.usual) / 8
		p.proof = 0
	case p.until-now > p.rest*3/4:
		// Too early: to look again so soon would cost everybody else more than half a percent.
	default:
		if p.proof++; p.proof == pollProof {
			p.to(pollLooking)
		}
	}
}

// longest returns how long the next look may last.
func (p *autoPoll) longest() time.Duration {
	if p.tries > 0 {
		return pollTry
	}
	return pollSpin
}

// hit enters a look that has succeeded after d. Tries that last longer than a look
// earn nothing.
func (p *autoPoll) hit(d time.Duration) {
	p.tries = max(p.tries-1, 0)
	if d > pollSpin {
		return
	}
	p.credit = min(p.credit+pollWorth, pollCredit)
	if p.earned += pollWorth; p.earned >= pollRest {
		p.rest = 0
	}
}

// more enters that a look has brought more of a message after d. It saves processor time alone,
// so what it has taken is set against that: looks end where the rest comes as slowly as a network
// carries it, and go on where the other end has no pause.
func (p *autoPoll) more(now, d time.Duration) {
	if p.tries > 0 {
		p.hit(d)
		return
	}
	earned := pollWorth - d
	p.credit = min(p.credit+earned, pollCredit)
	if p.earned += max(earned, 0); p.earned >= pollRest {
		p.rest = 0
	}
	if p.credit < 0 {
		p.tire(now)
	}
}

// miss enters a look that has ended in vain after d.
func (p *autoPoll) miss(now, d time.Duration) {
	if p.credit -= d; p.credit < 0 {
		p.tire(now)
	}
}

// away enters that during a look the processor was taken away for d.
func (p *autoPoll) away(now, d time.Duration) {
	if p.earned < d {
		p.tire(now)
	}
	p.earned = 0
}

// crowd enters that another connection has been at work since the last wait. Looks
// are for one at a time: the thread that hears of the others would have to wait for
// the end of the looker's slice.
func (p *autoPoll) crowd(now time.Duration) {
	switch p.state {
	case pollWatching:
		p.proof = 0
	case pollLooking:
		p.tire(now)
	}
}

// tire ends the looks for a while.
func (p *autoPoll) tire(now time.Duration) {
	p.rest = min(max(2*p.rest, pollRest), pollRestMax)
	p.until = now + p.rest
	p.credit, p.earned, p.usual = 0, 0, 0
	p.to(pollResting)
}
