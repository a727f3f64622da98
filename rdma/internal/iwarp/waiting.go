package iwarp

import (
	"runtime"
	"time"
)

// Waiting. A receiver that finds its socket empty parks in the poller, and its
// processor goes idle. Waking both up again costs more than handling a message
// (25 to 30 µs on a virtual machine: an interrupt between processors and an exit of
// the halted one). So a receiver may look a little longer first.

// Values of Params.BusyPoll that are no durations. Auto looks longer only where that pays:
// while the peer answers at once. Off never does.
const (
	BusyPollAuto time.Duration = 0
	BusyPollOff  time.Duration = -1
)

// pollStreak is how long a receiver goes on without parking where a parked
// scheduler is all that hears other sockets.
const pollStreak = 5 * time.Millisecond

// waiting is how the receiver waits for bytes; it belongs to its goroutine.
type waiting struct {
	qp       *QP
	limit    time.Duration // how long the receiver spins; or BusyPollAuto, BusyPollOff
	lastByte time.Duration // see clock: when the last byte came, or the last wait began
	auto     autoPoll      // of BusyPollAuto
	onlyP    bool          // of BusyPollAuto: whoever polls keeps the scheduler from looking at other sockets
}

// epoch is what the clock of this file counts from.
var epoch = time.Now()

func clock() time.Duration { return time.Since(epoch) }

// fixed spins on the socket for up to d after the last byte before it parks
// in the poller. After a second of silence it parks at once.
func (w *waiting) fixed(fd uintptr, d time.Duration) bool {
	qp := w.qp
	x := &qp.rx
	for {
		before := x.stats.Bytes
		if x.poll(fd) {
			return true
		}
		now := clock()
		if x.stats.Bytes != before {
			w.lastByte = now
			continue
		}
		if quiet := now - w.lastByte; quiet > d || quiet > time.Second {
			return false
		}
		runtime.Gosched() // whoever else has work goes first
	}
}

// adaptive is poll under the rule of autoPoll.
func (w *waiting) adaptive(fd uintptr) bool {
	qp := w.qp
	x, p := &qp.rx, &w.auto
	qp.dev.awake.Add(1)
	quiet := false
	defer func() {
		if quiet {
			qp.conn.Quiet(false)
		}
		w.lastByte = clock()
		qp.dev.awake.Add(-1)
	}()
	begin := clock()
	if qp.dev.turn.Swap(qp.Num) != qp.Num {
		p.crowd(begin)
	}
	for parked := begin - w.lastByte; ; parked = 0 {
		bytes := x.stats.Bytes
		if x.poll(fd) {
			return true
		}
		if x.stats.Bytes == bytes {
			return false // a stale event
		}
		now := clock()
		p.woke(now, parked)
		switch {
		case p.state != pollLooking, x.stage != rxHeader, x.in.r != x.in.w:
			return false
		case w.onlyP && now-begin > pollStreak:
			return false
		}
		if !quiet {
			quiet = true
			qp.conn.Quiet(true)
		}
		if !w.look(now) {
			x.publish()
			return false
		}
	}
}

// look waits for bytes without parking. Queue pairs of one device do not look at
// the same time: with several at work, each would delay the others.
func (w *waiting) look(start time.Duration) bool {
	qp := w.qp
	p := &w.auto
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
