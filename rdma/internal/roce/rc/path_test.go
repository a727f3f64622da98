package rc

import (
	"errors"
	"strings"
	"testing"
	"time"

	"softiser/rdma/internal/roce/packet"
	"softiser/rdma/internal/verbs"
)

const unit = 4096

// A way doubles with each round trip until something is lost, halves once per round trip,
// and grows by a packet per round trip after that.
func TestPathGrows(t *testing.T) {
	p := NewPath(unit)
	p.moved(0, firstFlight/unit)
	if p.allows(firstFlight / unit) {
		t.Error("more than the bound")
	}
	p.answered(firstFlight/unit, 100*time.Microsecond)
	if got := p.Stats(); got.Limit != 2*firstFlight || got.RTT != 100*time.Microsecond || got.Rate == 0 {
		t.Errorf("after a round trip: %+v", got)
	}
	p.moved(firstFlight/unit, 2*firstFlight/unit)
	p.lost(time.Second)
	p.lost(time.Second + 50*time.Microsecond)
	if got := p.Stats(); got.Limit != firstFlight || got.Losses != 1 {
		t.Errorf("after two losses in one round trip: %+v", got)
	}
	p.answered(firstFlight/unit, 0)
	if got := p.Stats().Limit; got != firstFlight+unit {
		t.Errorf("grown to %d", got)
	}
	for range 100 {
		p.lost(time.Hour)
	}
	for i := range 100 {
		p.lost(time.Duration(i+2) * time.Hour)
	}
	if got := p.Stats().Limit; got != leastFlight {
		t.Errorf("fallen to %d", got)
	}
}

// Round trips that have become long, and a bound that nobody uses, are no reason to grow.
func TestPathKeeps(t *testing.T) {
	p := NewPath(unit)
	p.answered(firstFlight/unit, 100*time.Microsecond) // nothing in flight
	p.moved(0, firstFlight/unit)
	for range 20 {
		p.answered(1, 50*time.Millisecond)
	}
	grown := p.Stats()
	p.answered(64, 50*time.Millisecond)
	if got := p.Stats(); got.Limit != grown.Limit || got.Limit > firstFlight+unit || got.Delayed != 21 {
		t.Errorf("%+v, before %+v", got, grown)
	}
}

// One connection alone may have all of it; as soon as others want to send, each has its
// share at once, and who has more waits.
func TestPathShares(t *testing.T) {
	p := NewPath(unit)
	const whole = firstFlight / unit
	p.moved(0, whole)
	if !p.allows(0) {
		t.Error("a second connection may not begin")
	}
	p.moved(0, 1)
	if !p.allows(whole/2-1) || p.allows(whole/2) || p.allows(whole) {
		t.Error("no equal shares")
	}
	p.moved(whole, whole/2-2)
	if !p.allows(whole / 2) {
		t.Error("what others leave may be used")
	}
	p.moved(whole/2-2, 0)
	p.moved(1, 0)
	if s := p.Stats(); s.Connections != 0 || s.InFlight != 0 {
		t.Errorf("%+v", s)
	}
}

// What may be on its way to this side depends on nothing but its own buffer.
func TestIntake(t *testing.T) {
	p := NewIntake(unit, 8*unit)
	p.moved(0, 8)
	p.lost(time.Second)
	p.answered(8, time.Microsecond)
	if s := p.Stats(); s.Limit != 8*unit || p.allows(8) || !p.allows(0) {
		t.Errorf("%+v", s)
	}
}

// The last packet of what was sent is asked for when the answer is late, not by the time-out
// of the connection; the peer's answer says what was lost, or that nothing was.
func TestLateAnswer(t *testing.T) {
	a := newAsker(t, nil)
	ask := func(now time.Duration) {
		a.queue(t, verbs.OpSend, 0, 1)
		a.sent(now)
	}
	ask(0)
	a.answer(packet.Acknowledge, 0xfffffe, packet.ACK, nil, time.Millisecond)
	if got := a.req.RTT(); got != time.Millisecond {
		t.Fatalf("a round trip of %v", got)
	}
	ask(time.Second)
	at, ok := a.req.Deadline()
	if !ok || at != time.Second+minProbe {
		t.Fatalf("deadline %v, %v", at, ok)
	}
	a.req.Tick(at)
	if got := a.sent(at); got != "SEND Only @ffffff" || a.req.Stats().Probes != 1 || a.req.Stats().Timeouts != 0 {
		t.Errorf("sent %q, %+v", got, a.req.Stats())
	}
	if again, _ := a.req.Deadline(); again != time.Second+2*minProbe {
		t.Errorf("then %v", again)
	}
	a.answer(packet.Acknowledge, 0xffffff, packet.ACK, nil, 2*time.Second)
	if _, ok := a.req.Deadline(); ok || !a.req.Idle() || a.req.RTT() != time.Millisecond {
		t.Errorf("idle %v, a round trip of %v: that of a packet sent twice counts", a.req.Idle(), a.req.RTT())
	}
}

// Who is not answered says that it may be for the size of the packet, if none as large as that
// has ever come through.
func TestLargePacketsAreDropped(t *testing.T) {
	for _, tt := range []struct {
		before, n      int // bytes of a request that is answered, of one that is not
		bytes, carried int
	}{
		{100, 300, 256, 100}, {0, 700, 256, 0}, {256, 300, 0, 0}, {600, 1000, 0, 0}, {100, 50, 0, 0},
	} {
		a := newAsker(t, func(c *RequesterParams) { c.Retries, c.MTU = 0, packet.MTU256 })
		a.queue(t, verbs.OpSend, 0, tt.before)
		a.sent(0)
		last := max(1, (tt.before+255)/256) - 1
		a.answer(packet.Acknowledge, firstPSN.Add(last), packet.ACK, nil, 0)
		a.queue(t, verbs.OpWrite, 0, tt.n)
		a.sent(0)
		for now := time.Second; a.req.Err() == nil; now += time.Second {
			a.req.Tick(now)
		}
		var x *Exceeded
		if !errors.As(a.req.Err(), &x) || x.Bytes != tt.bytes || x.Carried != tt.carried {
			t.Errorf("%d bytes, then %d: %+v", tt.before, tt.n, x)
		}
	}
	if s := (&Exceeded{Bytes: 4096, Carried: 48}).Error(); !strings.Contains(s, "drop large packets") || !strings.Contains(s, "4096") {
		t.Error(s)
	}
}

// TestCNP: a congestion notification packet halves what is in flight, once per round trip, and as losses do;
// it means nothing while nothing is in flight.
func TestCNP(t *testing.T) {
	p := NewPath(unit)
	p.moved(0, firstFlight/unit/2)
	p.answered(0, 100*time.Microsecond)
	for i, tt := range []struct {
		at   time.Duration
		loss bool
		news bool
		want int64
	}{
		{time.Second, false, true, firstFlight / 4}, {time.Second + 50*time.Microsecond, false, false, firstFlight / 4},
		{time.Second + 60*time.Microsecond, true, false, firstFlight / 4}, {2 * time.Second, true, true, firstFlight / 8},
		{2*time.Second + 50*time.Microsecond, false, false, firstFlight / 8}, {3 * time.Second, false, true, leastFlight}, {4 * time.Second, false, true, leastFlight},
	} {
		if tt.loss {
			p.lost(tt.at)
		} else if news := p.congested(tt.at); news != tt.news {
			t.Errorf("%d: news: %v", i, news)
		}
		if got := p.Stats().Limit; got != tt.want {
			t.Errorf("%d: %d may be in flight, want %d", i, got, tt.want)
		}
	}
	if got := p.Stats(); got.Losses != 1 || got.Congested != 3 {
		t.Errorf("%+v", got)
	}
	if NewIntake(unit, 1<<20).congested(time.Second) {
		t.Error("the way to our own socket takes notices")
	}

	a := newAsker(t, func(c *RequesterParams) { c.MTU = packet.MTU256 })
	if a.req.ReceiveCNP(0) {
		t.Error("with nothing in flight it is obeyed")
	}
	a.queue(t, verbs.OpSend, 0, 5*256)
	a.sent(0)
	before := a.req.Window()
	if !a.req.ReceiveCNP(0) || a.req.Window() != before/2 {
		t.Errorf("a window of %d, then %d", before, a.req.Window())
	}
	for range 100 {
		a.req.ReceiveCNP(0)
	}
	if a.req.Err() != nil || a.req.Window() != minWindow {
		t.Errorf("%v, a window of %d", a.req.Err(), a.req.Window())
	}
}

// A peer that stands still for as long as a collector of garbage may keep it, 400 ms of rdma_cm's
// 537, and then answers all: nothing is taken for lost, and nothing but single packets was sent again.
func TestPauseIsNoLoss(t *testing.T) {
	way := NewPath(256)
	a := newAsker(t, func(c *RequesterParams) { c.AckTimeout, c.Retries, c.Path = 537*time.Millisecond, 0, way })
	a.queue(t, verbs.OpSend, 0, 1)
	a.sent(0)
	a.answer(packet.Acknowledge, firstPSN, packet.ACK, nil, time.Millisecond)
	window, limit := a.req.Window(), way.Stats().Limit
	const packets, pause = 20, 400 * time.Millisecond
	a.queue(t, verbs.OpWrite, 0, packets*256)
	a.sent(0)
	for {
		at, ok := a.req.Deadline()
		if !ok || at >= pause {
			break
		}
		a.req.Tick(at)
		a.sent(at)
	}
	a.answer(packet.Acknowledge, firstPSN.Add(packets), packet.ACK, nil, pause)
	s := a.req.Stats()
	if err := a.req.Err(); err != nil || !a.req.Idle() || s.Probes == 0 || s.Timeouts != 0 || s.Repeated != s.Probes {
		t.Errorf("%v, idle %v, %+v", err, a.req.Idle(), s)
	}
	if p := way.Stats(); a.req.Window() < window || p.Limit < limit || p.Losses != 0 {
		t.Errorf("a window of %d, then %d; %+v", window, a.req.Window(), p)
	}
}
