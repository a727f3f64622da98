package iwarp

import (
	"runtime"
	"time"
)

// Waiting. A receiver that finds its socket empty parks in the poller, and its
// processor goes idle. Waking both up again costs more than handling a message
// (25 to 30 µs on a virtual machine: an interrupt between processors and an exit of
// the halted one). So a receiver may look a little longer first.

// BusyPollAuto is the ConnParams.BusyPoll that looks longer only where that pays:
// while the peer answers at once.
const BusyPollAuto time.Duration = -1

// pollStreak is how long a receiver goes on without parking where a parked
// scheduler is all that hears other sockets.
const pollStreak = 5 * time.Millisecond

// epoch is what the clock of this file counts from.
var epoch = time.Now()

func clock() time.Duration { return time.Since(epoch) }

// rxBusyPoll spins on the socket for up to d after the last byte before it parks
// in the poller. After a second of silence it parks at once.
func (qp *QP) rxBusyPoll(fd uintptr, d time.Duration) bool {
	x := &qp.rx
	for {
		before := x.stats.Bytes
		if qp.rxPoll(fd) {
			return true
		}
		now := clock()
		if x.stats.Bytes != before {
			qp.lastByte = now
			continue
		}
		if quiet := now - qp.lastByte; quiet > d || quiet > time.Second {
			return false
		}
		runtime.Gosched() // whoever else has work goes first
	}
}

// rxAutoPoll is rxPoll under the rule of autoPoll.
func (qp *QP) rxAutoPoll(fd uintptr) bool {
	x, p := &qp.rx, &qp.auto
	qp.dev.awake.Add(1)
	quiet := false
	defer func() {
		if quiet {
			qp.conn.Quiet(false)
		}
		qp.lastByte = clock()
		qp.dev.awake.Add(-1)
	}()
	begin := clock()
	if qp.dev.turn.Swap(qp.Num) != qp.Num {
		p.crowd(begin)
	}
	for parked := begin - qp.lastByte; ; parked = 0 {
		bytes := x.stats.Bytes
		if qp.rxPoll(fd) {
			return true
		}
		if x.stats.Bytes == bytes {
			return false // a stale event
		}
		now := clock()
		p.woke(now, parked)
		switch {
		case p.state != pollLooking, x.stage != rxHeader, x.r != x.w:
			return false
		case qp.onlyP && now-begin > pollStreak:
			return false
		}
		if !quiet {
			quiet = true
			qp.conn.Quiet(true)
		}
		if !qp.look(now) {
			qp.publishRx()
			return false
		}
	}
}

// look waits for bytes without parking. Queue pairs of one device do not look at
// the same time: with several at work, each would delay the others.
func (qp *QP) look(start time.Duration) bool {
	p := &qp.auto
	for now := start; ; {
		if qp.dev.awake.Load() > 1 || qp.dev.turn.Load() != qp.Num {
			p.crowd(now)
			return false
		}
		runtime.Gosched() // whoever else has work in this process goes first
		before := now
		now = clock()
		if now-before > pollAway {
			p.away(now, now-before)
		}
		qp.rx.stats.PollCalls++
		if qp.conn.Readable() {
			p.hit()
			qp.rx.stats.Polled++
			return true
		}
		if p.state != pollLooking {
			return false
		}
		if now-start > pollSpin {
			p.miss(now, now-start)
			return false
		}
	}
}
