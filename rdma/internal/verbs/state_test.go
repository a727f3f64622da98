package verbs

import (
	"errors"
	"strings"
	"testing"

	"softiser/internal/fsm"
)

// TestStates: the table is the drawing in package rdma, and Error is final.
func TestStates(t *testing.T) {
	legal := map[[2]State]bool{
		{StateIdle, StateRTS}: true, {StateIdle, StateError}: true,
		{StateRTS, StateClosing}: true, {StateRTS, StateTerminate}: true, {StateRTS, StateError}: true,
		{StateClosing, StateTerminate}: true, {StateClosing, StateError}: true,
		{StateTerminate, StateError}: true,
	}
	for from := StateIdle; from <= StateError; from++ {
		for to := StateIdle; to <= StateError; to++ {
			if got, want := from.mayBecome(to), legal[[2]State{from, to}] || from == to; got != want {
				t.Errorf("%v to %v: %v, want %v", from, to, got, want)
			}
		}
	}
}

// idle is an engine without a connection, and a front that does not want to know.
type idle struct{ stopped int }

func (*idle) Push()                          {}
func (i *idle) Stop()                        { i.stopped++ }
func (*idle) Drain()                         {}
func (*idle) Wait()                          {}
func (*idle) Discard(*WQE)                   {}
func (*idle) SRQLow()                        {}
func (*idle) Reads() int                     { return 0 }
func (*idle) StateChanged(_, _ State) func() { return func() {} }
func (*idle) Cause(err error) error          { return err }
func (*idle) Ended(error)                    {}
func (*idle) Event(Event)                    {}

// newIdle is a queue pair in state RTS without anybody behind it.
func newIdle() (*QP, *idle) {
	i, cq := new(idle), new(CQ)
	cq.Init(16, nil)
	qp := &QP{SendCQ: cq, RecvCQ: cq, MaxSend: 4, Engine: i, Connected: true}
	qp.Init(i, 4)
	qp.Mu.Lock()
	qp.SetState(StateRTS)()
	qp.Mu.Unlock()
	return qp, i
}

// TestIllegalTransition: outside of tests it ends the queue pair and says so.
func TestIllegalTransition(t *testing.T) {
	qp, engine := newIdle()
	told := fsm.OnIllegal
	t.Cleanup(func() { fsm.OnIllegal = told })
	var got error
	fsm.OnIllegal = func(err error) { got = err }
	qp.Mu.Lock()
	qp.SetState(StateIdle)()
	state, err := qp.StateLocked(), qp.Err
	qp.Mu.Unlock()
	if state != StateRTS || !qp.Dying.Load() || engine.stopped != 1 || got == nil || !errors.Is(err, got) || !strings.Contains(got.Error(), "from RTS to Idle") {
		t.Errorf("state %v, told %v, ended by %v", state, got, err)
	}
}

// TestFirstCauseCounts: a queue pair ends once, by the first cause, and its engine is
// stopped once.
func TestFirstCauseCounts(t *testing.T) {
	qp, engine := newIdle()
	first := errors.New("first")
	qp.Fail(first)
	qp.Fail(errors.New("second"))
	if qp.Err != first || engine.stopped != 1 {
		t.Errorf("ended by %v, stopped %d times", qp.Err, engine.stopped)
	}
	select {
	case <-qp.Failing:
	default:
		t.Error("Failing is open")
	}
}

// TestSweepInOrder: requests complete in the order in which they were posted, whatever
// the order in which they end, and hidden ones do not complete at all.
func TestSweepInOrder(t *testing.T) {
	qp, _ := newIdle()
	qp.SQ.Size(8)
	qp.Mu.Lock()
	defer qp.Mu.Unlock()
	qp.SQ.Hide(OpRead)
	for i, op := range []Opcode{OpRead, OpSend, OpWrite} {
		e, err := qp.PostLocked(uint64(i+1), op)
		if err != nil {
			t.Fatal(err)
		}
		e.Flags = FlagSignaled
	}
	q := &qp.SQ
	q.Next = q.Tail
	for i := range uint32(2) {
		e := q.At(q.Head + 2 + i)
		e.End = uint64(10 * (i + 1))
	}
	if op := qp.SweepLocked(100); op != 0 || qp.SendCQ.Len() != 0 {
		t.Fatalf("%v, %d completions before the Reads have ended", op, qp.SendCQ.Len())
	}
	q.At(q.Head).Done, q.At(q.Head+1).Done = true, true
	if op := qp.SweepLocked(10); op != OpRead || q.Hidden != 0 || qp.SendCQ.Len() != 2 {
		t.Fatalf("hidden %v, %d left, %d completions", op, q.Hidden, qp.SendCQ.Len())
	}
	qp.SweepLocked(20)
	for want := uint64(1); want <= 3; want++ {
		if wc := qp.SendCQ.NextLocked(); wc == nil || wc.ID != want || wc.Status != StatusSuccess {
			t.Fatalf("completion %+v, want request %d", wc, want)
		}
	}
}

// TestRest: an empty queue gives the memory of its entries back, and others do not; what an
// entry was last used for does not show.
func TestRest(t *testing.T) {
	qp, _ := newIdle()
	qp.Mu.Lock()
	defer qp.Mu.Unlock()
	q := &qp.SQ
	qp.MaxSend = 4 * sqPiece
	q.Size(qp.MaxSend)
	pieces := func() (n int) {
		for _, p := range q.ring {
			if p != nil {
				n++
			}
		}
		return n
	}
	for round := range 3 {
		for i := range uint64(sqPiece + 1) {
			e, err := qp.PostLocked(i, OpSend)
			if err != nil {
				t.Fatal(err)
			}
			e.Flags = 0
			if e.Status != StatusSuccess || e.Done || len(e.Segs) != 0 || len(e.LKeys) != 0 {
				t.Fatalf("round %d: a new entry is %+v", round, e)
			}
			n := 8 << round
			copy(e.Inline(n, n), "12345678")
			e.Add(make([]byte, 3), 7)
			e.Add(make([]byte, 3), 7)
			e.End = 1
		}
		q.Next = q.Tail
		if q.Rest(); pieces() != 2 {
			t.Fatalf("%d pieces in use by %d entries", pieces(), sqPiece+1)
		}
		qp.SweepLocked(1)
		if q.Rest(); pieces() != 0 {
			t.Fatalf("%d pieces in use by an empty queue", pieces())
		}
		q.Rest() // again
	}
}

// TestFlush: what has not ended completes as flushed, in order; later posts at once.
func TestFlush(t *testing.T) {
	qp, _ := newIdle()
	qp.Mu.Lock()
	defer qp.Mu.Unlock()
	for i := range uint64(3) {
		if _, err := qp.PostLocked(i, OpSend); err != nil {
			t.Fatal(err)
		}
	}
	qp.SQ.At(1).Status = StatusRemoteAccess
	qp.FlushSendsLocked()
	var b RecvBuf
	qp.FlushRecvsLocked(&b)
	qp.SetState(StateError)()
	if e, err := qp.PostLocked(3, OpWrite); e != nil || err != nil {
		t.Fatalf("%v, %v", e, err)
	}
	for i, st := range []Status{StatusFlushed, StatusRemoteAccess, StatusFlushed, StatusFlushed} {
		if wc := qp.SendCQ.NextLocked(); wc == nil || wc.ID != uint64(i) || wc.Status != st {
			t.Errorf("completion %+v, want %d %v", wc, i, st)
		}
	}
}
