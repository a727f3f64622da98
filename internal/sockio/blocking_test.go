package sockio

import (
	"errors"
	"io"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// pieces is a reader that uses Readv; the scheduler is told of its calls, as it is where the
// memory may wait for a disk.
type pieces struct {
	reader
	soon bool // it is not told
}

func (r *pieces) Ready() bool {
	var b [1]byte
	for {
		n, err := r.Readv(vecs(b[:]), r.soon)
		switch {
		case err == ErrAgain:
			return false
		case err != nil || n == 0:
			r.err = errors.Join(err, io.EOF)
			return true
		}
		if r.hear(b[0]); b[0] == r.over {
			return true
		}
	}
}

// blocker is a Waiter that has seen enough to wait in a call.
func blocker(conn *Conn, who Receiver) *Waiter {
	conn.opts.BusyPoll, conn.opts.Crowd = BusyPollOff, new(Crowd)
	w := new(Waiter)
	w.Init(conn, who)
	w.onlyP, w.call = false, &conn.call // how long the test takes must not matter
	w.block.proof = blockProof
	w.lastByte = clock() + time.Hour
	w.crowd.turn.Store(w.number)
	return w
}

// A receiver that is alone and answers waits in a call until the next byte comes, wherever
// it reads to. It may find that byte at once instead, so there are as many as it takes.
func TestBlocking(t *testing.T) {
	for name, want := range map[string]blockState{"Read": blockInRead, "Readv": blockBefore, "Readv, soon": blockInRead} {
		peer, conn := pair(t)
		const more, last = 1, 2
		var w *Waiter
		r := reader{Conn: conn, over: last, hear: func(b byte) {
			w.block.proof, w.lastByte = blockProof, clock()+time.Hour
			if w.Blocks > 2 && w.block.state == want {
				b = last
			}
			put(t, conn, b)
		}}
		var who Receiver = &r
		if name != "Read" {
			who = &pieces{r, want == blockInRead}
		}
		w = blocker(conn, who)
		done := make(chan error)
		go func() { done <- conn.ReadLoop(w.Ready) }()
		for got := [1]byte{more}; ; {
			put(t, peer, got[0])
			if got[0] == last {
				break
			}
			if _, err := io.ReadFull(peer.nc, got[:]); err != nil {
				t.Fatal(err)
			}
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// A wait in a call ends when the stream does.
func TestBlockingEnds(t *testing.T) {
	peer, conn := pair(t)
	r := &reader{Conn: conn, hear: func(b byte) { put(t, conn, b) }}
	w := blocker(conn, r)
	put(t, peer, 1)
	done := make(chan error)
	go func() { done <- conn.ReadLoop(w.Ready) }()
	var got [1]byte
	if _, err := io.ReadFull(peer.nc, got[:]); err != nil {
		t.Fatal(err)
	}
	if err := peer.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil || !errors.Is(r.err, io.EOF) {
		t.Errorf("%v, %v", err, r.err)
	}
}

// A wait in vain ends by itself and is followed by a rest, which becomes longer.
func TestBlockingInVain(t *testing.T) {
	peer, conn := pair(t)
	w := blocker(conn, &reader{Conn: conn, hear: func(b byte) { put(t, conn, b) }})
	for n, rest := range []time.Duration{pollRest, 2 * pollRest, 4 * pollRest} {
		w.block.proof, w.block.until = blockProof, 0
		w.lastByte = clock() + time.Hour
		put(t, peer, 1)
		// The byte is here before the reader looks for it.
		if _, err := unix.Poll([]unix.PollFd{{Fd: int32(conn.fd), Events: unix.POLLIN}}, -1); err != nil && err != unix.EINTR {
			t.Fatal(err)
		}
		if w.Ready(0) {
			t.Fatal("the end of a stream that has none")
		}
		if w.block.rest != rest || w.Blocks != uint64(n+1) || w.block.proof != 0 {
			t.Errorf("wait %d: rest %v, %d waits in a call, proof %d", n, w.block.rest, w.Blocks, w.block.proof)
		}
	}
	w.block.paid = 65
	w.block.vain(clock())
	if w.block.rest != pollRest {
		t.Errorf("a rest of %v after many waits that paid", w.block.rest)
	}
}

// Nobody waits in a call for what this process has to do first, beside others at work, or
// through a layer.
func TestNotBlocking(t *testing.T) {
	for name, change := range map[string]func(*Waiter, *reader){
		"unanswered":   func(_ *Waiter, r *reader) { r.hear = nil },
		"another":      func(w *Waiter, _ *reader) { w.crowd.awake.Store(1) },
		"another came": func(w *Waiter, _ *reader) { w.crowd.turn.Store(w.number + 1) },
		"no proof":     func(w *Waiter, _ *reader) { w.block.proof = 0 },
		"long waits":   func(w *Waiter, _ *reader) { w.lastByte = clock() - 2*blockShort },
		"rest":         func(w *Waiter, _ *reader) { w.block.until = clock() + time.Hour },
		"layer":        func(w *Waiter, _ *reader) { w.call.Forbid(true) },
	} {
		t.Run(name, func(t *testing.T) {
			peer, conn := pair(t)
			r := &reader{Conn: conn, hear: func(b byte) { put(t, conn, b) }}
			w := blocker(conn, r)
			change(w, r)
			put(t, peer, 1)
			if _, err := unix.Poll([]unix.PollFd{{Fd: int32(conn.fd), Events: unix.POLLIN}}, -1); err != nil && err != unix.EINTR {
				t.Fatal(err)
			}
			if w.Ready(0) || w.Blocks != 0 || string(r.got) != "\x01" {
				t.Errorf("%d waits in a call, got %q", w.Blocks, r.got)
			}
		})
	}
}

// looks is a reader that notes whether it might have waited.
type looks struct {
	reader
	mayWait bool
}

func (l *looks) Ready() bool {
	l.mayWait = l.mayWait || l.call.wait
	return l.reader.Ready()
}

// While notices are due of what has been sent by reference, no read waits, which would not hear of
// one: the wait comes before it.
func TestNoticesAreHeardWhileBlocking(t *testing.T) {
	for _, due := range []int64{1, 0} {
		peer, conn := pair(t)
		conn.byRef.Store(due)
		l := &looks{reader: reader{Conn: conn, hear: func(byte) { put(t, conn, 1) }}}
		w := blocker(conn, l)
		put(t, peer, 1)
		if _, err := unix.Poll([]unix.PollFd{{Fd: int32(conn.fd), Events: unix.POLLIN}}, -1); err != nil && err != unix.EINTR {
			t.Fatal(err)
		}
		if w.Ready(0) || w.Blocks != 1 || l.mayWait != (due == 0) {
			t.Errorf("%d due: %d waits in a call, one of them in a read: %v", due, w.Blocks, l.mayWait)
		}
	}
}

// What has been sent by reference counts until notices have told of all of it.
func TestNoticesAreCounted(t *testing.T) {
	peer, conn := pair(t)
	if !conn.EnableZerocopy() {
		t.Skip("no MSG_ZEROCOPY: the kernel does not know it")
	}
	const calls = 3
	for range calls {
		if n, err := conn.WritevZerocopy(vecs([]byte("ref"))); n != 3 || err != nil {
			t.Fatal(n, err)
		}
	}
	if got := conn.byRef.Load(); got != calls {
		t.Errorf("%d calls are under way, want %d", got, calls)
	}
	if _, err := io.ReadFull(peer.nc, make([]byte, 3*calls)); err != nil {
		t.Fatal(err)
	}
	for told := uint32(0); told < calls; {
		if _, err := unix.Poll([]unix.PollFd{{Fd: int32(conn.fd)}}, -1); err != nil && err != unix.EINTR {
			t.Fatal(err)
		}
		conn.Notices(func(n Notice) { told += n.Hi - n.Lo + 1 })
	}
	if got := conn.byRef.Load(); got != 0 {
		t.Errorf("%d calls are under way, and all have been told of", got)
	}
}
