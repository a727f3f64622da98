package scsi

import (
	"sync/atomic"
	"time"
)

// QoS limits the rate of a volume's READs and WRITEs. 0 means no limit.
type QoS struct {
	IOPS        float64 // commands per second
	BytesPerSec float64
	// BurstIOs and BurstBytes are how much unused rate is kept for later; default
	// 100 ms of it.
	BurstIOs   float64
	BurstBytes float64
}

// limiter is a pair of token buckets and the commands that wait for them. A
// command that finds the buckets in debt, or others waiting, waits its turn;
// turns go round the nexuses, so that one initiator with a deep queue does not
// shut out another with a shallow one. All of it is guarded by LU.mu.
type limiter struct {
	on    atomic.Bool // written under LU.mu, read without
	qos   QoS
	ops   float64 // tokens; may be negative after a large command
	bytes float64
	last  time.Time
	timer *time.Timer
	rings []*waitRing // nexuses with waiting commands, next turn first
}

// waitRing is the FIFO of one nexus.
type waitRing struct {
	nexus      *Nexus
	head, tail *Task
}

func (l *limiter) init(q QoS) {
	if q.BurstIOs <= 0 {
		q.BurstIOs = q.IOPS / 10
	}
	if q.BurstBytes <= 0 {
		q.BurstBytes = q.BytesPerSec / 10
	}
	// A bucket that holds less than one command would never be full enough.
	q.BurstIOs, q.BurstBytes = max(q.BurstIOs, 1), max(q.BurstBytes, 1)
	l.qos = q
	l.on.Store(q.IOPS > 0 || q.BytesPerSec > 0)
	l.ops, l.bytes = q.BurstIOs, q.BurstBytes
	l.last = time.Now()
}

// SetQoS changes the rate limits. Commands that wait go on under the new ones.
func (lu *LU) SetQoS(q QoS) {
	lu.mu.Lock()
	defer lu.mu.Unlock()
	// Full buckets again: what waited for the old rate is not to wait for its debt.
	lu.limit.init(q)
	if len(lu.limit.rings) > 0 {
		lu.limit.stop()
		lu.releaseThrottledLocked()
	}
}

// refill adds what the time since the last call has brought.
func (l *limiter) refill(now time.Time) {
	dt := now.Sub(l.last).Seconds()
	l.last = now
	l.ops = min(l.ops+dt*l.qos.IOPS, l.qos.BurstIOs)
	l.bytes = min(l.bytes+dt*l.qos.BytesPerSec, l.qos.BurstBytes)
}

// ready reports whether the next command may go: no bucket is in debt.
func (l *limiter) ready() bool {
	return (l.qos.IOPS <= 0 || l.ops > 0) && (l.qos.BytesPerSec <= 0 || l.bytes > 0)
}

// pay takes the cost of t. A command larger than the bucket leaves a debt, which
// delays the next one.
func (l *limiter) pay(t *Task) {
	if l.qos.IOPS > 0 {
		l.ops--
	}
	if l.qos.BytesPerSec > 0 {
		l.bytes -= float64(t.n)
	}
}

// delay returns how long it takes until no bucket is in debt.
func (l *limiter) delay() time.Duration {
	var s float64
	if l.qos.IOPS > 0 && l.ops <= 0 {
		s = max(s, -l.ops/l.qos.IOPS)
	}
	if l.qos.BytesPerSec > 0 && l.bytes <= 0 {
		s = max(s, -l.bytes/l.qos.BytesPerSec)
	}
	return time.Duration(s*float64(time.Second)) + 50*time.Microsecond
}

// throttle charges t, or makes it wait and reports true.
func (lu *LU) throttle(t *Task) bool {
	lu.mu.Lock()
	defer lu.mu.Unlock()
	l := &lu.limit
	l.refill(time.Now())
	if len(l.rings) == 0 && l.ready() {
		l.pay(t)
		return false
	}
	t.state = taskThrottled
	t.qnext = nil
	var r *waitRing
	for _, x := range l.rings {
		if x.nexus == t.Nexus {
			r = x
		}
	}
	if r == nil {
		r = &waitRing{nexus: t.Nexus}
		l.rings = append(l.rings, r)
	}
	if r.tail == nil {
		r.head = t
	} else {
		r.tail.qnext = t
	}
	r.tail = t
	lu.armLimitLocked()
	return true
}

func (lu *LU) armLimitLocked() {
	if lu.limit.timer != nil {
		return
	}
	lu.limit.timer = time.AfterFunc(lu.limit.delay(), func() {
		lu.mu.Lock()
		defer lu.mu.Unlock()
		lu.limit.timer = nil
		lu.releaseThrottledLocked()
	})
}

// releaseThrottledLocked lets the commands go whose turn has come.
func (lu *LU) releaseThrottledLocked() {
	l := &lu.limit
	l.refill(time.Now())
	for len(l.rings) > 0 && l.ready() {
		r := l.rings[0]
		t := r.head
		r.head, t.qnext = t.qnext, nil
		l.rings = append(l.rings[:0], l.rings[1:]...)
		if r.head != nil {
			l.rings = append(l.rings, r)
		}
		l.pay(t)
		t.job = t.op.run
		lu.enqueueLocked(t)
	}
	if len(l.rings) > 0 {
		lu.armLimitLocked()
	}
}

// unthrottleLocked takes an aborted task out of its ring.
func (lu *LU) unthrottleLocked(t *Task) {
	l := &lu.limit
	for i, r := range l.rings {
		var prev *Task
		for q := r.head; q != nil; prev, q = q, q.qnext {
			if q != t {
				continue
			}
			if prev == nil {
				r.head = t.qnext
			} else {
				prev.qnext = t.qnext
			}
			if r.tail == t {
				r.tail = prev
			}
			t.qnext = nil
			if r.head == nil {
				l.rings = append(l.rings[:i], l.rings[i+1:]...)
			}
			return
		}
	}
}

func (l *limiter) stop() {
	if l.timer != nil {
		l.timer.Stop()
		l.timer = nil
	}
}
