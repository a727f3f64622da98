package sockio

import (
	"errors"
	"io"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"softiser/internal/loopback"
)

// reader is a Receiver of single bytes; each is a message.
type reader struct {
	*Conn
	got  []byte
	err  error
	over byte // ends it; 0: none does
	hear func(byte)
	rest bool // what has come is the beginning of a message
}

func (r *reader) Between() bool { return !r.rest }
func (r *reader) Within() bool  { return r.rest }

func (r *reader) Ready() bool {
	var b [1]byte
	for {
		n, err := r.Read(b[:])
		switch {
		case err == ErrAgain:
			return false
		case err != nil || n == 0:
			r.err = errors.Join(err, io.EOF)
			return true
		}
		r.got = append(r.got, b[0])
		if r.hear != nil {
			r.hear(b[0])
		}
		if b[0] != 0 && b[0] == r.over {
			return true
		}
	}
}

func put(t *testing.T, c *Conn, b byte) {
	t.Helper()
	if n, err := c.Writev(vecs([]byte{b}), false); n != 1 || err != nil {
		t.Error(n, err)
	}
}

// A look finds what has come, ends in vain in time, and makes way for others.
func TestLook(t *testing.T) {
	peer, conn := pair(t)
	conn.opts.Crowd = new(Crowd)
	var w Waiter
	w.Init(conn, &reader{Conn: conn})
	p := &w.auto
	w.crowd.awake.Store(1)
	w.crowd.turn.Store(w.number)

	p.to(pollLooking)
	if w.look(clock()) {
		t.Error("the connection is over")
	}
	if p.state != pollResting || w.Calls == 0 || w.Found != 0 {
		t.Errorf("after an unpaid look in vain: %v, %d calls, %d found", p.state, w.Calls, w.Found)
	}

	for name, busy := range map[string]func(){
		"at work":      func() { w.crowd.awake.Store(2) },
		"been at work": func() { w.crowd.turn.Store(w.number + 1) },
	} {
		*p = autoPoll{}
		p.to(pollLooking)
		busy()
		calls := w.Calls
		if w.look(clock()) || w.Found != 0 || p.state != pollResting || w.Calls != calls {
			t.Errorf("beside another connection that is or has %s: %v, %d calls", name, p.state, w.Calls-calls)
		}
		w.crowd.awake.Store(1)
		w.crowd.turn.Store(w.number)
	}

	p.to(pollLooking)
	put(t, peer, 'x')
	if err := conn.ReadLoop(func(uintptr) bool { return conn.Readable() }); err != nil {
		t.Fatal(err)
	}
	begin := clock() + time.Hour // however long this goroutine is held up, the look is a short one
	if w.look(begin) || w.Found != 1 || p.credit != pollWorth {
		t.Errorf("bytes in the socket were not found: %d found, %v earned", w.Found, p.credit)
	}
}

// A receiver looks for the rest of a message as well, and a look that brings it earns less by what
// it has taken.
func TestLookWithin(t *testing.T) {
	peer, conn := pair(t)
	conn.opts.Crowd = new(Crowd)
	conn.Ask(true) // a look is a read, before which the rest comes
	r := &reader{Conn: conn, rest: true, over: 'z'}
	reads := 0
	var w Waiter
	w.Init(conn, readerFunc{r, func() bool {
		if reads++; reads == 2 {
			put(t, peer, 'z')
		}
		return r.Ready()
	}})
	w.onlyP = false // it looks however long it is held up before
	p := &w.auto
	w.crowd.turn.Store(w.number)
	p.to(pollLooking)
	put(t, peer, 'x')
	if err := conn.ReadLoop(w.Ready); err != nil || w.Found != 1 || string(r.got) != "xz" {
		t.Errorf("%v, %d looks have found something, %q has come", err, w.Found, r.got)
	}

	w.crowd.awake.Store(1)
	w.crowd.turn.Store(w.number)
	for within, want := range map[bool]time.Duration{false: pollWorth, true: pollWorth - pollSpin/5} {
		r.rest = within
		*p = autoPoll{}
		p.to(pollLooking)
		p.tries = 0
		put(t, peer, 'x')
		if w.look(clock()-pollSpin/5) || p.credit > want {
			t.Errorf("within a message %v: %v earned, want %v at most", within, p.credit, want)
		}
	}
}

// Where messages come one by one a look reads at once, without asking first whether there is
// anything. Where they come in batches it asks, and reads what has come by then.
func TestLookReads(t *testing.T) {
	for name, one := range map[string]bool{"one by one": true, "in batches": false} {
		peer, conn := pair(t)
		conn.opts.Crowd = new(Crowd)
		r := &counted{reader: reader{Conn: conn}}
		var w Waiter
		w.Init(conn, r)
		w.crowd.awake.Store(1)
		w.crowd.turn.Store(w.number)
		conn.Ask(one)

		w.auto.to(pollLooking)
		if w.look(clock()) || w.Found != 0 || (r.calls > 0) != one || w.Vain != uint64(r.calls) {
			t.Errorf("%s, empty socket: %d reads, %d in vain, %d found", name, r.calls, w.Vain, w.Found)
		}

		put(t, peer, 'x')
		if err := conn.ReadLoop(func(uintptr) bool { return conn.Readable() }); err != nil {
			t.Fatal(err)
		}
		w.auto.to(pollLooking)
		if w.look(clock()+time.Hour) || w.Found != 1 || string(r.got) != "x" {
			t.Errorf("%s: %d found, %q read", name, w.Found, r.got)
		}

		if err := peer.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if err := conn.ReadLoop(func(uintptr) bool { return conn.Readable() }); err != nil {
			t.Fatal(err)
		}
		w.auto.to(pollLooking)
		if !w.look(clock()+time.Hour) || w.Found != 1 {
			t.Errorf("%s: the end is not told, or taken for a message: %d found", name, w.Found)
		}
	}
}

// counted counts how often it is called.
type counted struct {
	reader
	calls int
}

func (c *counted) Ready() bool {
	c.calls++
	return c.reader.Ready()
}

// However it waits, a receiver gets everything, in order, and the end.
func TestWaiters(t *testing.T) {
	for name, d := range map[string]time.Duration{"auto": BusyPollAuto, "off": BusyPollOff, "fixed": time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			a, b := pair(t)
			a.opts.BusyPoll, b.opts.BusyPoll = d, d
			a.opts.Crowd, b.opts.Crowd = new(Crowd), new(Crowd)
			const rounds = 200
			echo := &reader{Conn: b, hear: func(x byte) { put(t, b, x) }}
			back := &reader{Conn: a, over: rounds, hear: func(x byte) {
				if x != rounds {
					put(t, a, x+1)
				}
			}}
			done := make(chan error, 1)
			go func() {
				var w Waiter
				w.Init(b, echo)
				done <- b.ReadLoop(w.Ready)
			}()
			put(t, a, 1)
			var w Waiter
			w.Init(a, back)
			if err := a.ReadLoop(w.Ready); err != nil || back.err != nil {
				t.Fatal(err, back.err)
			}
			for i, x := range back.got {
				if int(x) != i+1 {
					t.Fatalf("echo %d is %d", i+1, x)
				}
			}
			if err := a.CloseWrite(); err != nil {
				t.Fatal(err)
			}
			if err := <-done; err != nil || !errors.Is(echo.err, io.EOF) {
				t.Errorf("the end: %v, %v", err, echo.err)
			}
			if d != BusyPollAuto && w.Calls != 0 {
				t.Errorf("%d looks", w.Calls)
			}
		})
	}
}

// A receiver with more to read than its share gives others theirs, and is called again
// without more bytes having come.
func TestTurns(t *testing.T) {
	for name, tc := range map[string]struct {
		others, onlyP bool
		lasted        time.Duration // how long the turn has lasted
		enough        bool
	}{
		"short":                     {true, true, 0, false},
		"beside others":             {true, false, 2 * turnShare, true},
		"alone, other processors":   {false, false, time.Hour, false},
		"alone, the only processor": {false, true, 2 * pollStreak, true},
		"alone, not for long":       {false, true, 2 * turnShare, false},
	} {
		var w Waiter
		_, conn := pair(t)
		w.Init(conn, nil)
		w.onlyP, w.since = tc.onlyP, clock()+time.Hour
		if tc.lasted > 0 {
			w.since = clock() - tc.lasted
		}
		if w.shared = w.since; tc.others {
			w.shared += turnMemory
		}
		if tc.lasted == 2*turnShare && !tc.enough {
			w.since = clock() + time.Hour // a slow machine must not make more of it
		}
		if w.Enough() != tc.enough || w.enough != tc.enough {
			t.Errorf("%s: %v", name, w.enough)
		}
	}
}

// What another receiver has had a turn of is remembered: a second turn in a row is no longer
// than the first one, because what the other waits for may come in the middle of it.
func TestTurnsAreRemembered(t *testing.T) {
	peer, conn := pair(t)
	put(t, peer, 'x') // so that there is more to read, whenever a turn ends
	var w Waiter
	conn.opts.Crowd = new(Crowd)
	w.Init(conn, nil)
	w.onlyP = false
	var enough bool
	w.who = receiverFunc(func() bool {
		w.since -= 2 * turnShare // the turn has lasted that long
		enough = w.Enough()
		return true
	})
	turn := func(of uint64) bool {
		w.crowd.turn.Store(of)
		w.Ready(0)
		return enough
	}
	if turn(w.number) {
		t.Error("a turn of the only one ends")
	}
	if before := clock(); !turn(w.number+1) || w.shared < before+turnMemory {
		t.Error("a turn behind another one's does not end, or is not remembered")
	}
	if w.shared = clock() + time.Hour; !turn(w.number) {
		t.Error("a turn behind that one does not end")
	}
	if w.shared = clock() - time.Hour; turn(w.number) {
		t.Error("a turn ends though the others have had none for long")
	}
}

// A turn that ends with the last bytes before a reset is not the last one, though the poller has told of
// both together.
func TestTurnBeforeAReset(t *testing.T) {
	e, peer := tcpPair(t)
	c, err := New(e.nc, Options{BusyPoll: BusyPollOff, Crowd: new(Crowd)})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := peer.Write([]byte("last")); err != nil {
		t.Fatal(err)
	}
	if err := reset(e, peer); err != nil {
		t.Fatal(err)
	}
	e.settle(unix.POLLIN | unix.POLLHUP)
	// The poller tells of events in their order: this one is behind those.
	x, y := pair(t)
	told := false
	if err := y.ReadLoop(func(uintptr) bool {
		if told {
			return true
		}
		told = true
		put(t, x, 1)
		return false
	}); err != nil {
		t.Fatal(err)
	}
	var w Waiter
	turns := 0
	w.Init(c, receiverFunc(func() bool {
		turns++
		n, err := c.Read(make([]byte, 8))
		if n <= 0 {
			return err != ErrAgain
		}
		w.since -= 2 * turnShare // the turn has lasted that long
		return !w.Enough()
	}))
	w.shared = clock() + time.Hour // others are at work
	c.SetReadDeadline(time.Now().Add(20 * time.Second))
	if err := c.ReadLoop(w.Ready); err != nil || turns < 2 {
		t.Errorf("after %d turns: %v", turns, err)
	}
}

// hoard is a layer that has messages of one byte, while its socket is empty.
type hoard struct {
	endless
	n *int
}

func (l hoard) Holds() bool { return *l.n > 0 }

func (l hoard) ReadLayer(*Conn, []byte) (int, error) {
	if *l.n == 0 {
		return 0, ErrAgain
	}
	*l.n--
	return 1, nil
}

// What a layer holds is no event of the socket: a receiver whose turn ends before all of it has been
// read is not left to wait for one.
func TestTurnsAboveALayer(t *testing.T) {
	for _, d := range []time.Duration{BusyPollAuto, BusyPollOff, time.Microsecond} {
		nc, _ := loopback.Pair(t)
		n := 3
		c, err := New(hoard{endless{nc}, &n}, Options{BusyPoll: d, Crowd: new(Crowd)})
		if err != nil {
			t.Fatal(err)
		}
		var w Waiter
		turns := 0
		w.Init(c, receiverFunc(func() bool {
			var p [1]byte
			turns++
			for {
				if _, err := c.Read(p[:]); err != nil {
					return false
				}
				w.since -= 2 * turnShare // the turn has lasted that long
				if w.Enough() {
					return false
				}
			}
		}))
		c.opts.Crowd.turn.Store(w.number)
		w.shared = clock() + time.Hour // others are at work, however long ago their last turn was
		if w.Ready(0); n > 0 || turns < 3 {
			t.Errorf("busy poll %v: it waits, with %d messages to be read, after %d turns", d, n, turns)
		}
		c.Close()
	}
}

// readerFunc is a reader that reads in another way.
type readerFunc struct {
	*reader
	ready func() bool
}

func (f readerFunc) Ready() bool { return f.ready() }

// receiverFunc is a Receiver that has read whole messages.
type receiverFunc func() bool

func (f receiverFunc) Ready() bool { return f() }
func (receiverFunc) Between() bool { return true }
func (receiverFunc) Within() bool  { return false }

// What is left in the socket at the end of a turn begins another one, as often as it takes.
func TestTurnsGoOn(t *testing.T) {
	peer, conn := pair(t)
	put(t, peer, 'x')
	turns := 0
	if err := conn.ReadLoop(func(uintptr) bool {
		turns++
		conn.Quiet(false)
		return turns == 5
	}); err != nil {
		t.Error(err)
	}
}
