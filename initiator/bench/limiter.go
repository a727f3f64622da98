package bench

import (
	"math"
	"time"
)

// pacing keeps a clone to the rates of its job. The clones of a job have the rates each, as in fio.
type pacing struct {
	on  bool // some direction has a rate
	lim [datas]limiter
}

func newPacing(j *Job) (p pacing) {
	for d := range p.lim {
		p.lim[d] = limiter{bytes: j.Rate[d], iops: j.RateIOPS[d]}
		if j.Poisson {
			p.lim[d].poisson(j.BS[d].Min, j.Seed+uint64(j.thread)<<32+uint64(d))
		}
		p.on = p.on || j.Rate[d] > 0 || j.RateIOPS[d] > 0
	}
	return p
}

// reset restarts the accounts at now.
func (p *pacing) reset(now time.Duration) {
	for d := range p.lim {
		p.lim[d].reset(now)
	}
}

// take enters an operation, and returns how long after now it is due; zero or less: now.
func (p *pacing) take(e extent, now time.Duration) time.Duration {
	l := &p.lim[e.d]
	wait := l.wait(now)
	l.take(e.n)
	return wait
}

// turn returns the direction of the next operation of a mixed load, which by its mix would be d: the other
// one where d is ahead of its rate and that is due earlier. So each direction has its rate, as in fio.
func (p *pacing) turn(d dir, now time.Duration) dir {
	other := dirRead + dirWrite - d
	if wait := p.lim[d].wait(now); wait > 0 && p.lim[other].wait(now) < wait {
		return other
	}
	return d
}

// limiter paces one direction of one clone: the n-th byte (or operation) is due
// at start + n/rate, so a load that has fallen behind catches up, as fio's
// linear rate does.
type limiter struct {
	bytes, iops int64 // per second; zero: no limit
	start       time.Duration
	sentBytes   int64
	sentIOs     int64

	mean   time.Duration // of the Poisson process; zero: none
	random rng
	next   time.Duration // Poisson: when the next operation is due, after start
}

// reset restarts the account at now.
func (l *limiter) reset(now time.Duration) { l.start, l.sentBytes, l.sentIOs, l.next = now, 0, 0, 0 }

// wait returns how long after now the next operation is due; zero or less: now.
func (l *limiter) wait(now time.Duration) time.Duration {
	if l.mean > 0 {
		return l.start + l.next - now
	}
	var due time.Duration
	if l.bytes > 0 {
		due = perSecond(l.sentBytes, l.bytes)
	}
	if l.iops > 0 {
		due = max(due, perSecond(l.sentIOs, l.iops))
	}
	if due == 0 {
		return 0
	}
	return l.start + due - now
}

// take enters one operation of n bytes.
func (l *limiter) take(n int) {
	l.sentBytes += int64(n)
	l.sentIOs++
	if l.mean > 0 {
		l.next += time.Duration(float64(l.mean) * -math.Log(1-l.random.unit()))
	}
}

// poisson makes the process one of random times; block is the size by which a rate
// in bytes is counted, the direction's smallest as in fio.
func (l *limiter) poisson(block int, seed uint64) {
	if l.iops > 0 {
		l.mean = perSecond(1, l.iops)
	}
	if l.bytes > 0 {
		l.mean = max(l.mean, perSecond(int64(block), l.bytes))
	}
	l.random = rng(mix64(seed))
}

// perSecond returns the time that n units take at rate units a second,
// and half the longest Duration for what would overflow.
func perSecond(n, rate int64) time.Duration {
	if n/rate > math.MaxInt64/int64(2*time.Second) {
		return math.MaxInt64 / 2
	}
	return time.Duration(n/rate)*time.Second + time.Duration(float64(n%rate)/float64(rate)*float64(time.Second))
}
