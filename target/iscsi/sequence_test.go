package iscsi

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"softiser/blockdev"
	"softiser/internal/iscsi"
)

var sequenceStart uint32 = 0xfffffffe // the numbers wrap

func newSequence(size int) *sequence {
	q := &sequence{}
	q.init(size, sequenceStart, blockdev.DefaultPool())
	return q
}

// arrive is a command with the number sequenceStart+n and some data, which counts what is
// released.
func arrive(n uint32, released *int) *iscsi.PDU {
	p := &iscsi.PDU{Data: make([]byte, 8)}
	p.BHS.NewSCSICommand()
	p.BHS.SetITT(n)
	p.BHS.SetCmdSN(sequenceStart + n)
	p.Recycle = func(*iscsi.PDU) { *released++ }
	return p
}

// giveUp releases what is held.
func giveUp(q *sequence) {
	for _, h := range q.drop(nil) {
		h.release()
	}
}

// What may come in between keeps the next command from being delivered as it arrives.
func TestSequenceTurn(t *testing.T) {
	var n int
	for name, change := range map[string]func(*sequence){
		"stalled":    func(q *sequence) { q.bursts.add(true) },
		"delivering": func(q *sequence) { q.delivering = true },
		"aborted":    func(q *sequence) { q.skipOver(sequenceStart) },
	} {
		q := newSequence(4)
		if !q.turn(arrive(0, &n)) || q.turn(arrive(1, &n)) {
			t.Fatal("a fresh sequence does not begin with its first number")
		}
		if change(q); q.turn(arrive(0, &n)) {
			t.Errorf("%s: it is delivered", name)
		}
	}
}

// Whoever delivers goes on with what waits behind the command that has just come, and
// nobody else does meanwhile.
func TestSequenceBegin(t *testing.T) {
	var n int
	for name, change := range map[string]func(*sequence){
		"held":    func(q *sequence) { q.hold(nil, arrive(2, &n), 0) },
		"aborted": func(q *sequence) { q.skipOver(sequenceStart + 1) },
		"awaited": func(q *sequence) { q.waits = []*orderWait{{cmdSN: sequenceStart + 1}} },
	} {
		q := newSequence(4)
		change(q)
		if !q.begin(false) || !q.delivering {
			t.Errorf("%s: nobody looks at it", name)
		}
		giveUp(q)
	}
	if q := newSequence(4); q.begin(false) || q.delivering || !q.begin(true) || !q.delivering {
		t.Error("with nothing behind it")
	}
}

// A gap is as old as the first command that waits behind it, or the last one that was
// delivered.
func TestSequenceAgeOfAGap(t *testing.T) {
	q := newSequence(8)
	var n int
	q.hold(nil, arrive(1, &n), 10*time.Second)
	q.hold(nil, arrive(3, &n), 20*time.Second)
	if q.since != 10*time.Second {
		t.Errorf("the gap is from %v", q.since)
	}
	q.begin(false)
	q.next(30 * time.Second)
	q.current.release()
	if q.nextData(); q.since != 30*time.Second || q.n != 1 {
		t.Errorf("the second gap is from %v, %d are held", q.since, q.n)
	}
	giveUp(q)
}

// While a task holds up the order nothing is delivered; afterwards everything is.
func TestSequenceStall(t *testing.T) {
	q := newSequence(4)
	var n int
	q.hold(nil, arrive(0, &n), 0)
	q.bursts.add(true)
	if w, h := q.next(0); w != nil || h.p != nil || q.delivering {
		t.Error("a command passes the one that holds up the order")
	}
	q.bursts.remove(true)
	if _, h := q.next(0); h.p == nil || !q.delivering {
		t.Error("it is not delivered")
	}
	q.current.release()
}

// A number counts as received once, whether its command has come, comes later, or never.
func TestSequenceSkip(t *testing.T) {
	q := newSequence(4)
	released := 0
	c := &conn{}
	p := arrive(1, &released)
	p.BHS.SetFinal(false)
	q.hold(c, p, 0)
	q.holdData(c, arrive(1, &released)) // its data
	if q.memory.bytes.Load() == 0 {
		t.Fatal("what is held takes no memory")
	}
	q.skipOver(sequenceStart + 1)
	if q.n != 0 || q.memory.bytes.Load() != 0 {
		t.Errorf("%d are held with %d bytes after the command has been taken back", q.n, q.memory.bytes.Load())
	}
	if q.hold(nil, arrive(1, &released), 0) {
		t.Error("it comes once more, and is held")
	}
	q.skipMissing(sequenceStart + 3)
	before := q.win.MaxCmdSN
	if _, h := q.next(0); h.p != nil || q.win.ExpCmdSN != 1 {
		t.Errorf("ExpCmdSN %#x", q.win.ExpCmdSN)
	}
	if q.win.MaxCmdSN != before+3 || len(q.skip) != 0 {
		t.Errorf("MaxCmdSN %#x after %#x: a number without a command has kept its place", q.win.MaxCmdSN, before)
	}
}

// What is missing is skipped, what has come is not.
func TestSequenceSkipMissing(t *testing.T) {
	q := newSequence(4)
	var n int
	q.hold(nil, arrive(1, &n), 0)
	q.skipMissing(sequenceStart + 2)
	if _, h := q.next(0); h.p == nil || h.p.BHS.ITT() != 1 {
		t.Error("the command that had come has been skipped")
	}
	q.current.release()
}

// A wait is due when everything before its number has been delivered, not earlier.
func TestSequenceWaits(t *testing.T) {
	q := newSequence(4)
	w := &orderWait{cmdSN: sequenceStart + 1, late: time.NewTimer(time.Hour)}
	q.waits = append(q.waits, w)
	if got, _ := q.next(0); got != nil {
		t.Fatal("it is due before the command before it has come")
	}
	q.begin(false)
	if got, _ := q.next(0); got != w || w.late.Stop() {
		t.Error("it is not due, or its time still runs")
	}
	if q.forget(w) {
		t.Error("it is due and waits")
	}
}

// Whatever the order in which commands arrive, and however long the window, they are delivered
// in that of their numbers, once each, and nothing is left.
func TestSequenceModel(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for i := range 300 {
		size := 1 + i%12
		q := newSequence(size)
		var got []uint32
		var released int
		order := rng.Perm(size)
		for _, n := range slices.Concat(order, order[:rng.IntN(size)]) { // some of them twice
			p := arrive(uint32(n), &released)
			switch sn := p.BHS.CmdSN(); {
			case !q.win.Accepts(sn):
			case q.turn(p):
				got = append(got, uint32(n))
				for more := q.begin(false); more; {
					_, h := q.next(0)
					if more = h.p != nil; more {
						got = append(got, h.p.BHS.ITT())
						h.p.Release()
						q.nextData()
					}
				}
			default:
				q.hold(nil, p, 0)
			}
		}
		if want := []uint32{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}[:size]; !slices.Equal(got, want) || q.n != 0 || q.memory.bytes.Load() != 0 {
			t.Fatalf("arrived %v, delivered %v; %d held, %d bytes", order, got, q.n, q.memory.bytes.Load())
		}
	}
}

// Only what came on a connection goes with it.
func TestSequenceDropsOfAConnection(t *testing.T) {
	q := newSequence(4)
	var n int
	a, b := &conn{}, &conn{}
	q.hold(a, arrive(1, &n), 0)
	q.hold(b, arrive(2, &n), 0)
	for _, h := range q.drop(a) {
		if h.c != a {
			t.Error("a command of another connection has gone too")
		}
		h.release()
	}
	if q.n != 1 || q.at(sequenceStart+2).p == nil {
		t.Errorf("%d are left", q.n)
	}
	giveUp(q)
}

// Unsolicited data finds its command, which is held or being delivered: by connection and
// tag, and only where more of it was announced.
func TestSequenceOwner(t *testing.T) {
	c, other := &conn{}, &conn{}
	var n int
	announce := func(final bool) *iscsi.PDU {
		p := arrive(1, &n)
		p.BHS.SetFinal(final)
		return p
	}
	for _, x := range []struct {
		name string
		c    *conn
		itt  uint32
		cmd  *iscsi.PDU
		want bool
	}{
		{"its data", c, 1, announce(false), true},
		{"another tag", c, 2, announce(false), false},
		{"another connection", other, 1, announce(false), false},
		{"a command without data to come", c, 1, announce(true), false},
	} {
		q := newSequence(4)
		q.hold(c, x.cmd, 0)
		if got := q.owner(x.c, x.itt) != nil; got != x.want {
			t.Errorf("%s, held: %v", x.name, got)
		}
		q.begin(false)
		q.next(0)
		if got := q.owner(x.c, x.itt) == &q.current; got != x.want {
			t.Errorf("%s, under delivery: %v", x.name, got)
		}
		q.current.release()
	}
}

// Data for which there is no memory takes its command's along while that is held; behind
// one that is being delivered it comes without.
func TestSequenceDataWithoutRoom(t *testing.T) {
	q := newSequence(4)
	c := &conn{}
	var n int
	hold := func(i uint32) {
		p := arrive(i, &n)
		p.BHS.SetFinal(false)
		q.hold(c, p, 0)
	}
	full := func() { q.memory.bytes.Add(heldMost) }
	hold(0)
	q.next(0)
	full()
	if !q.holdData(c, arrive(0, &n)) || len(q.current.data) != 1 || !q.current.data[0].NoRoom || q.current.p.NoRoom {
		t.Errorf("under delivery: %+v", q.current)
	}
	q.current.release()
	q.nextData()
	q.nextData()
	q.memory.bytes.Add(-heldMost)
	hold(1)
	full()
	h := q.at(sequenceStart + 1)
	if !q.holdData(c, arrive(1, &n)) || !h.p.NoRoom || len(h.p.Data) != 0 || len(h.data) != 0 {
		t.Errorf("held: %+v", h)
	}
	giveUp(q)
	if got := q.memory.bytes.Load(); got != heldMost {
		t.Errorf("%d bytes are not given back", got-heldMost)
	}
}

// One session may hold so much, whatever is left for others.
func TestHeldMemory(t *testing.T) {
	m := &heldMemory{pool: blockdev.DefaultPool()}
	if !m.reserve(heldMost) || m.reserve(1) {
		t.Error("the bound of a session is another one")
	}
	m.unreserve(heldMost)
	if !m.reserve(1) {
		t.Error("nothing is left after all has been given back")
	}
	m.unreserve(1)
}

// An immediate function that aborts a task set waits for a command that is between the
// window and the device server, though none is missing.
func TestAfterACommandUnderDelivery(t *testing.T) {
	s := serve(t, several(2))
	r := s.session("MaxConnections=2")
	x := s.sessionByTSIH(r.tsih)
	x.mu.Lock()
	sn := x.order.seq.win.ExpCmdSN
	x.order.seq.delivering = true
	x.mu.Unlock()
	ran := false
	x.order.afterCommands(nil, sn, func() { ran = true })
	if ran {
		t.Error("it has not waited")
	}
	if x.order.drain(nil); !ran {
		t.Error("it still waits when the command has been delivered")
	}
}
