package volume

import (
	"sync/atomic"
	"time"
)

// QoS limits the rate of a volume's READs and WRITEs; each piece of a copy, of at most
// [StageBytes], is a READ where it comes from and a WRITE where it goes. 0 means no limit.
type QoS struct {
	IOPS        float64 // commands per second
	BytesPerSec float64 // of payload
	// BurstIOs and BurstBytes are how much unused rate is kept for later; default
	// 100 ms of it.
	BurstIOs   float64
	BurstBytes float64
}

// limiter is a pair of token buckets and the commands that wait for them. A
// command that finds the buckets in debt, or others waiting, waits its turn;
// turns go round the clients, so that one initiator with a deep queue does not
// shut out another with a shallow one. All of it is guarded by Tasks.mu.
type limiter struct {
	pool  *pool       // where commands go whose turn has come
	on    atomic.Bool // written under Tasks.mu, read without
	qos   QoS
	ops   float64 // tokens; may be negative after a large command
	bytes float64
	last  time.Time
	timer *time.Timer
	rings []*waitRing // clients with waiting commands, next turn first

	throttled uint64        // commands that have had to wait, so far
	waiting   int           // that wait now
	waited    time.Duration // of all of them, added up until since
	since     time.Time     // when waiting has changed last
}

// countLocked books that so many more commands wait.
func (l *limiter) countLocked(more int) {
	now := time.Now()
	l.waited += time.Duration(l.waiting) * now.Sub(l.since)
	l.since = now
	l.waiting += more
	l.throttled += uint64(max(more, 0))
}

// Throttling is what a volume's rate limits have done.
type Throttling struct {
	Commands uint64        `json:"throttled_commands_total"` // that have had to wait, pieces of copies included
	Waiting  int           `json:"throttled_commands"`       // now
	Waited   time.Duration `json:"throttled_time_ns"`        // of all commands, added up
}

// Throttling returns what the limits have done until now.
func (s *Tasks) Throttling() Throttling {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := &s.limit
	l.countLocked(0)
	return Throttling{Commands: l.throttled, Waiting: l.waiting, Waited: l.waited}
}

// waitRing is the FIFO of one client.
type waitRing struct {
	client *Client
	opQueue
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
func (s *Tasks) SetQoS(q QoS) {
	s.mu.Lock()
	defer s.mu.Unlock()
	// Full buckets again: what waited for the old rate is not to wait for its debt.
	s.limit.init(q)
	if len(s.limit.rings) > 0 {
		s.limit.stop()
		s.limit.releaseLocked()
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

// pay takes the cost of o. A command larger than the bucket leaves a debt, which
// delays the next one.
func (l *limiter) pay(o *Op) {
	if l.qos.IOPS > 0 {
		l.ops--
	}
	if l.qos.BytesPerSec > 0 {
		l.bytes -= float64(o.Bytes)
	}
}

// delay returns how long it takes until no bucket is in debt.
func (l *limiter) delay() time.Duration {
	var secs float64
	if l.qos.IOPS > 0 && l.ops <= 0 {
		secs = max(secs, -l.ops/l.qos.IOPS)
	}
	if l.qos.BytesPerSec > 0 && l.bytes <= 0 {
		secs = max(secs, -l.bytes/l.qos.BytesPerSec)
	}
	return time.Duration(secs*float64(time.Second)) + 50*time.Microsecond
}

// Limited reports whether there is a rate limit, so that Throttle has to be asked.
func (s *Tasks) Limited() bool { return s.limit.on.Load() }

// Throttle charges o, or makes it wait for its turn and reports true; then a worker
// calls its Step.
func (s *Tasks) Throttle(o *Op) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := &s.limit
	l.refill(time.Now())
	if len(l.rings) == 0 && l.ready() {
		l.pay(o)
		return false
	}
	o.to(Throttled)
	l.waitTurnLocked(o)
	return true
}

// waitTurnLocked puts o behind its client's others that wait.
func (l *limiter) waitTurnLocked(o *Op) {
	l.countLocked(1)
	var r *waitRing
	for _, x := range l.rings {
		if x.client == o.Client {
			r = x
		}
	}
	if r == nil {
		r = &waitRing{client: o.Client}
		l.rings = append(l.rings, r)
	}
	r.push(o)
	l.armLocked()
}

// await is Throttle for a piece of a copy that moves n bytes, which waits on its own
// goroutine: among the commands of its client, and no longer than until the copy is told to
// end. It reports false then.
func (s *Tasks) await(c *Copy, n int64) bool {
	if !s.Limited() {
		return true
	}
	o := &Op{Client: c.client, Bytes: n, turn: make(chan struct{})}
	s.mu.Lock()
	s.limit.refill(time.Now())
	if len(s.limit.rings) == 0 && s.limit.ready() {
		s.limit.pay(o)
		s.mu.Unlock()
		return true
	}
	s.limit.waitTurnLocked(o)
	s.mu.Unlock()
	select {
	case <-o.turn:
		return true
	case <-c.done:
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.limit.dropLocked(o)
	return false
}

// armLocked sees to it that releaseLocked is called when the next turn comes.
func (l *limiter) armLocked() {
	if l.timer != nil {
		return
	}
	l.timer = time.AfterFunc(l.delay(), func() {
		l.pool.mu.Lock()
		defer l.pool.mu.Unlock()
		l.timer = nil
		l.releaseLocked()
	})
}

// releaseLocked lets the commands go whose turn has come.
func (l *limiter) releaseLocked() {
	l.refill(time.Now())
	for len(l.rings) > 0 && l.ready() {
		r := l.rings[0]
		o := r.pop()
		l.rings = append(l.rings[:0], l.rings[1:]...)
		if r.head != nil {
			l.rings = append(l.rings, r)
		}
		l.pay(o)
		l.countLocked(-1)
		if o.turn != nil {
			close(o.turn)
		} else {
			l.pool.enqueueLocked(o)
		}
	}
	if len(l.rings) > 0 {
		l.armLocked()
	}
}

// dropLocked takes an aborted command out of its ring.
func (l *limiter) dropLocked(o *Op) {
	for i, r := range l.rings {
		if !r.remove(o) {
			continue
		}
		l.countLocked(-1)
		if r.head == nil {
			l.rings = append(l.rings[:i], l.rings[i+1:]...)
		}
		return
	}
}

func (l *limiter) stop() {
	if l.timer != nil {
		l.timer.Stop()
		l.timer = nil
	}
}
