package rc

import (
	"testing"
	"time"

	"softiser/rdma/internal/roce/packet"
	"softiser/rdma/internal/verbs"
)

// flush ends the queue pair as its engine does.
func (a *asker) flush() {
	a.qp.Mu.Lock()
	a.qp.FlushSendsLocked()
	a.qp.Mu.Unlock()
}

// Whatever an answer says of a request behind a READ, it says first that the READ's
// answer was lost.
func TestAnswersBehindALostREAD(t *testing.T) {
	for _, s := range []packet.Syndrome{packet.ACK, packet.RNR | 12, packet.NAKSequence, packet.NAKRemoteAccess} {
		a := newAsker(t, nil)
		a.queue(t, verbs.OpSend, 0, 1)
		a.queue(t, verbs.OpRead, 0, 1)
		a.queue(t, verbs.OpSend, 0, 1)
		a.sent(0)
		before := a.req.window.size()
		a.answer(packet.Acknowledge, 0, s, nil, 0)
		if a.req.Err() != nil {
			t.Errorf("%v: %v", s, a.req.Err())
		}
		a.wantEnds(t, ok)
		if got := a.sent(0); got != "RDMA READ Request @ffffff, SEND Only @0" {
			t.Errorf("%v: sent again: %q", s, got)
		}
		if a.req.window.size() != before/2 || a.req.Stats().LostAnswers != 1 {
			t.Errorf("%v: window %d, was %d; %+v", s, a.req.window.size(), before, a.req.Stats())
		}
	}
}

// After the clock, a gap asks for a repetition as the first one did.
func TestGapAfterATimeout(t *testing.T) {
	a := newAsker(t, func(c *RequesterParams) { c.Retries = 5 })
	a.queue(t, verbs.OpRead, 0, 600)
	a.sent(0)
	for i, now := range []time.Duration{0, time.Second} {
		a.answer(packet.ReadResponseLast, 0, packet.ACK, fill(88), now)
		if got := a.sent(now); got != "RDMA READ Request @fffffe" {
			t.Errorf("gap %d: %q", i, got)
		}
		a.answer(packet.ReadResponseLast, 0, packet.ACK, fill(88), now)
		if got := a.sent(now); got != "" {
			t.Errorf("gap %d, seen twice: %q", i, got)
		}
		if i == 0 {
			a.req.Tick(now + time.Second)
			a.sent(now + time.Second)
		}
	}
	// The answer to any part of it makes the next loss the first one.
	if a.req.retries == 0 {
		t.Fatal("nothing was counted")
	}
	a.answer(packet.ReadResponseFirst, 0xfffffe, packet.ACK, fill(256), 2*time.Second)
	if a.req.retries != 0 {
		t.Errorf("%d retries after progress", a.req.retries)
	}
	if at, _ := a.req.Deadline(); at != 3*time.Second {
		t.Errorf("deadline %v", at)
	}
}

// What is answered while it waits to be sent again is not sent again.
func TestAnsweredBeforeItIsSentAgain(t *testing.T) {
	a := newAsker(t, nil)
	a.queue(t, verbs.OpWrite, 0, 900)
	a.queue(t, verbs.OpSend, 0, 1)
	a.sent(0)
	a.answer(packet.Acknowledge, 0xfffffe, packet.NAKSequence, nil, 0)
	a.answer(packet.Acknowledge, 0, packet.ACK, nil, 0)
	if got := a.sent(0); got != "RDMA WRITE Last @1, SEND Only @2" {
		t.Error(got)
	}
}

// The window grows by one for each window that was answered.
func TestWindowGrows(t *testing.T) {
	a := newAsker(t, func(c *RequesterParams) { c.Window = 6 })
	a.req.window.lost() // from 6 to the least
	for i, want := range []int{4, 4, 4, 5, 5, 5, 5, 5, 6, 6, 6, 6, 6, 6, 6} {
		a.queue(t, verbs.OpSend, 0, 1)
		a.sent(0)
		a.answer(packet.Acknowledge, firstPSN.Add(i), packet.ACK, nil, 0)
		if got := a.req.window.size(); got != want {
			t.Fatalf("%d after %d answers, want %d", got, i+1, want)
		}
	}
	if tiny := newWindow(1); tiny.size() != minWindow {
		t.Errorf("a window of %d", tiny.size())
	}
}

// The clock has no say while nothing is in flight, or if it has been told so.
func TestClockWithoutASay(t *testing.T) {
	a := newAsker(t, nil)
	a.req.Tick(time.Hour)
	a.queue(t, verbs.OpSend, 0, 1)
	a.sent(time.Hour)
	if at, ok := a.req.Deadline(); !ok || at != time.Hour+time.Second {
		t.Errorf("deadline %v, %v", at, ok)
	}
	a.queue(t, verbs.OpSend, 0, 1)
	a.sent(time.Hour + time.Second/2) // the time is that of the oldest
	if at, _ := a.req.Deadline(); at != time.Hour+time.Second {
		t.Errorf("deadline %v", at)
	}
	if a.req.Stats().Timeouts != 0 {
		t.Errorf("%+v", a.req.Stats())
	}
	before := a.req.window.size()
	if a.req.Tick(time.Hour + time.Second); a.req.window.size() != before/2 {
		t.Errorf("window %d after a timeout, was %d", a.req.window.size(), before)
	}

	a = newAsker(t, func(c *RequesterParams) { c.AckTimeout = 0 })
	a.queue(t, verbs.OpSend, 0, 1)
	a.sent(0)
	if at, ok := a.req.Deadline(); ok {
		t.Errorf("deadline %v without a timeout", at)
	}
}

// What comes after the end changes nothing; a malformed answer fails its READ.
func TestAfterTheEnd(t *testing.T) {
	a := newAsker(t, nil)
	a.queue(t, verbs.OpRead, 0, 300)
	a.queue(t, verbs.OpSend, 0, 1)
	a.sent(0)
	a.answer(packet.ReadResponseFirst, 0xfffffe, packet.ACK, fill(255), 0)
	first := a.req.Err()
	a.answer(packet.ReadResponseFirst, 0xfffffe, packet.ACK, fill(256), 0)
	a.answer(packet.ReadResponseLast, 0xffffff, packet.ACK, fill(44), 0)
	a.answer(packet.Acknowledge, 0, packet.ACK, nil, 0)
	if first == nil || a.req.Err() != first {
		t.Error(first, a.req.Err())
	}
	a.wantEnds(t)
	a.flush()
	a.wantEnds(t, verbs.StatusFatal, verbs.StatusFlushed)
}
