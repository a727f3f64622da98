package bench

import (
	"math"
	"time"
)

// limiter paces one direction of one clone: the n-th byte (or operation) is due
// at start + n/rate, so a load that has fallen behind catches up, as fio's
// linear rate does.
type limiter struct {
	bytes, iops int64 // per second; zero: no limit
	start       time.Duration
	sentBytes   int64
	sentIOs     int64
}

// reset restarts the account at now.
func (l *limiter) reset(now time.Duration) { l.start, l.sentBytes, l.sentIOs = now, 0, 0 }

// wait returns how long after now the next operation is due; zero or less: now.
func (l *limiter) wait(now time.Duration) time.Duration {
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
}

// perSecond returns the time that n units take at rate units a second,
// and half the longest Duration for what would overflow.
func perSecond(n, rate int64) time.Duration {
	if n/rate > math.MaxInt64/int64(2*time.Second) {
		return math.MaxInt64 / 2
	}
	return time.Duration(n/rate)*time.Second + time.Duration(float64(n%rate)/float64(rate)*float64(time.Second))
}
