package sockio

import (
	"runtime"
	"sync/atomic"
	"time"
)

// Waiting. A receiver that finds its socket empty parks in the poller, and its
// processor goes idle. Waking both up again costs more than handling a message
// (25 to 30 µs on a virtual machine: an interrupt between processors and an exit of
// the halted one). So a receiver may look a little longer first.

// Values of Options.BusyPoll that are no durations. Auto looks longer only where that pays:
// while the peer answers at once. Off never does.
const (
	BusyPollAuto time.Duration = 0
	BusyPollOff  time.Duration = -1
)

const (
	// pollStreak is how long a receiver goes on without parking where a parked
	// scheduler is all that hears other sockets.
	pollStreak = 5 * time.Millisecond
	// turnShare is how long it does while other receivers are at work.
	turnShare = 200 * time.Microsecond
	// turnMemory is how long another one counts as being at work after its last turn: what it
	// waits for may be in the peer's hands, and comes in the middle of a turn.
	turnMemory = 20 * time.Millisecond
)

// Crowd is the receivers with BusyPollAuto that make way for each other: with several at
// work, each would delay the others by looking.
type Crowd struct {
	awake atomic.Int32  // of them: are not parked
	turn  atomic.Uint64 // number of the one that had the last turn
	last  atomic.Uint64 // number of the one that came last
}

// everyone is the crowd of those that name no other: the connections of this process.
var everyone Crowd

// Receiver is who reads from a Conn, and waits by a Waiter.
type Receiver interface {
	// Ready reads and handles until the socket is empty (false) or there is nothing more
	// to read (true); see Conn.ReadLoop.
	Ready() (over bool)
	// Between reports whether nothing has come of the next frame yet. Only then may a read wait
	// for it.
	Between() bool
	// Within reports whether a message has begun whose rest is to come. Nobody waits for an
	// answer then, so looking for it has to save more than it costs.
	Within() bool
}

// Socket is what a Waiter looks at: a Conn, or a socket of datagrams.
type Socket interface {
	// Arrivals grows with each read that brings something.
	Arrivals() uint64
	// Readable reports whether a read would return something.
	Readable() bool
	// Quiet keeps what arrives from waking the thread that waits in the poller, as far as
	// the kernel offers that; Quiet(false) ends it, and raises the event for what has come.
	Quiet(on bool)
}

// Waiter waits for bytes on behalf of a Receiver. It belongs to the goroutine of that.
type Waiter struct {
	sock     Socket
	conn     *Conn   // the same, if it is one of a stream
	call     *InCall // of its reads, if they may wait; see the rules in blocking.go
	who      Receiver
	limit    time.Duration // how long to spin; or BusyPollAuto, BusyPollOff
	crowd    *Crowd
	number   uint64        // in crowd
	lastByte time.Duration // see clock: when the last byte came, or the last wait began
	auto     autoPoll      // of BusyPollAuto
	apart    apart         // of BusyPollAuto
	block    blockWait     // of BusyPollOff
	onlyP    bool          // whoever polls keeps the scheduler from looking at other sockets

	// Of the turn under way, see Enough.
	since  time.Duration // when it began
	others bool          // another receiver of the crowd has had one since the last of this
	enough bool          // it is over, though there is more to read

	shared time.Duration // until when others count as being at work, though they have no turn

	// Calls counts the looks for bytes, Found the waits that they have ended without parking, and
	// Vain the looks that were the receiver's own reads and have brought nothing; of BusyPollAuto.
	Calls, Found, Vain uint64
	Blocks             uint64 // waits in a call, of BusyPollOff
}

// Init makes w the waiter of who, the only reader of c, as the options of c say.
func (w *Waiter) Init(c *Conn, who Receiver) {
	w.InitSocket(c, who, c.opts.BusyPoll, c.opts.Crowd)
	w.conn = c
	w.apart.beside(c.nc)
	if w.onlyP {
		w.call = &c.call
	}
}

// InitSocket is Init for any socket that who alone reads; d and crowd are as in Options.
func (w *Waiter) InitSocket(s Socket, who Receiver, d time.Duration, crowd *Crowd) {
	*w = Waiter{sock: s, who: who, limit: d, crowd: crowd, onlyP: runtime.GOMAXPROCS(0) == 1}
	if w.crowd == nil {
		w.crowd = &everyone
	}
	w.number = w.crowd.last.Add(1)
}

// WaitIn lets a Waiter with BusyPollOff wait in the calls that read from its socket, of which
// c are the flags.
func (w *Waiter) WaitIn(c *InCall) { w.call = c }

// SetLimit changes how long the next waits look, as Options.BusyPoll says it.
func (w *Waiter) SetLimit(d time.Duration) { w.limit = d }

// Ready is for Conn.ReadLoop: what the receiver's is, and looks for a while before it
// reports false.
func (w *Waiter) Ready(uintptr) (over bool) {
	for over = w.turn(); !over && w.enough && w.holds(); over = w.turn() {
		runtime.Gosched() // no event of the socket tells of what a layer has read from it
	}
	return over
}

// holds reports whether there may be more to read above the socket.
func (w *Waiter) holds() bool { return w.conn != nil && w.conn.ly != nil && w.conn.ly.Holds() }

// turn is one of Ready.
func (w *Waiter) turn() (over bool) {
	w.since, w.enough = clock(), false
	if w.others = w.crowd.turn.Swap(w.number) != w.number; w.others {
		w.shared = w.since + turnMemory
	}
	switch {
	case w.limit > 0:
		return w.fixed(w.limit)
	case w.limit == BusyPollAuto:
		return w.adaptive()
	}
	if w.call == nil {
		return w.who.Ready()
	}
	return w.blocking()
}

// Enough ends the turn of a receiver that has much to read while others wait for theirs: a
// peer with a hundred commands in flight may well send the next ones as fast as they are
// served, and its socket would never be empty. It is called by the receiver's Ready between
// two reads; when it is true, Ready returns false at once, and is called again once the
// sockets that have become readable meanwhile have had their turns.
func (w *Waiter) Enough() bool {
	shared := w.since < w.shared
	if !shared && !w.onlyP {
		return false
	}
	if d := clock() - w.since; d <= turnShare || !shared && d <= pollStreak {
		return false
	}
	w.enough = true
	w.sock.Quiet(false) // has the poller report what has not been read
	if w.conn != nil && w.conn.inq.Known() {
		w.conn.Waits() // but not a reset behind what has been
	}
	return true
}

// epoch is what the clock of this file counts from.
var epoch = time.Now()

func clock() time.Duration { return time.Since(epoch) }

// fixed spins on the socket for up to d after the last byte before it parks
// in the poller. After a second of silence it parks at once.
func (w *Waiter) fixed(d time.Duration) bool {
	for {
		before := w.sock.Arrivals()
		if w.who.Ready() {
			return true
		}
		if w.enough {
			return false
		}
		now := clock()
		if w.sock.Arrivals() != before {
			w.lastByte = now
			continue
		}
		if quiet := now - w.lastByte; quiet > d || quiet > time.Second {
			return false
		}
		runtime.Gosched() // whoever else has work goes first
	}
}

// adaptive is Ready under the rule of autoPoll.
func (w *Waiter) adaptive() bool {
	p := &w.auto
	w.crowd.awake.Add(1)
	quiet := false
	defer func() {
		if quiet {
			w.sock.Quiet(false)
		}
		w.lastByte = clock()
		w.crowd.awake.Add(-1)
	}()
	begin := w.since
	if w.others {
		p.crowd(begin)
	}
	before := w.sock.Arrivals()
	if w.who.Ready() {
		return true
	}
	for parked := begin - w.lastByte; ; parked = 0 {
		if w.enough || w.sock.Arrivals() == before {
			return false // there is more to read, the event was stale, or a look was in vain
		}
		now := clock()
		p.woke(now, parked)
		switch {
		case p.state != pollLooking:
			return false
		case w.onlyP && now-begin > pollStreak:
			return false
		}
		if !quiet {
			quiet = true
			w.sock.Quiet(true)
		}
		before = w.sock.Arrivals()
		if w.look(now) {
			return true
		}
	}
}

// look waits for bytes without parking, and has the receiver read them: Arrivals tells whether
// any have come, and over is what the receiver's Ready says. Receivers of one crowd do not look
// at the same time.
func (w *Waiter) look(start time.Duration) (over bool) {
	p, within := &w.auto, w.who.Within()
	asked := within || w.conn == nil || !w.conn.ask // where much is sent, what has come last may be an acknowledgement, by this end's processor
	for now := start; ; {
		if w.crowd.awake.Load() > 1 || w.crowd.turn.Load() != w.number {
			p.crowd(now)
			return false
		}
		runtime.Gosched() // whoever else has work in this process goes first
		before := now
		now = clock()
		if now-before > pollAway {
			p.away(now, now-before)
		}
		w.Calls++
		found, over := w.try()
		if found {
			w.Found++
			if within {
				p.more(now, now-start)
			} else {
				p.hit(now - start)
			}
		}
		if found || over || p.state != pollLooking {
			return over
		}
		if !asked && now-start > w.apart.after {
			asked = true
			if w.apart.move(w.conn.fd, now) {
				now = clock()
				start = now
			}
		}
		if now-start > p.longest() {
			p.miss(now, now-start)
			return false
		}
	}
}

// try reads, if bytes have come. Where messages come one by one, it reads at once: to look
// first would be a call more for each. Where they come in batches, what arrives between a look
// and the read behind it is one of the batch.
func (w *Waiter) try() (found, over bool) {
	reads := w.conn != nil && w.conn.ask
	if !reads && !w.sock.Readable() {
		return false, false
	}
	before := w.sock.Arrivals()
	over = w.who.Ready()
	if found = w.sock.Arrivals() != before; reads && !found && !over {
		w.Vain++
	}
	return found, over
}
