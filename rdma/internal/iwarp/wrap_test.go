package iwarp

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"
	"unsafe"

	"softiser/rdma/internal/mem"
	"softiser/rdma/internal/verbs"
	"softiser/rdma/internal/wire"
)

// The counters of the outgoing Read queue wrap at 2^32, of which its length need
// not be a divisor.
func TestReadQueueWrap(t *testing.T) {
	for _, n := range []int{1, 3, 5, 16, 127} {
		r := newRig(t, false)
		qp := r.qp
		qp.reads.orq = qp.reads.orq[:0:0]
		for range n {
			s := new(mem.Region)
			s.Init(qp.PD)
			qp.reads.orq = append(qp.reads.orq, orqEntry{sink: s})
		}
		start := uint32(0xffffffff)
		start -= start%uint32(n) + uint32(n) // as if nothing had been reduced yet
		qp.reads.head, qp.reads.tail = start, start
		var out []*verbs.WQE
		for i := range 4 * n {
			for len(out) < n {
				e, _, _ := r.read(make([]byte, 8))
				out = append(out, e)
			}
			qp.Mu.Lock()
			if o := qp.reads.oldestLocked(); o.e != out[0] || !o.sink.State().Valid {
				t.Fatalf("%d slots, Read %d: the oldest is not the one that was sent first", n, i)
			}
			qp.reads.answeredLocked(verbs.StatusSuccess)
			if busy := qp.reads.inFlight(); busy != n-1 {
				t.Fatalf("%d slots: %d in use", n, busy)
			}
			qp.Mu.Unlock()
			out = out[1:]
		}
	}
}

// Message sequence numbers wrap at 2^32 (RFC 5041 §4.3).
func TestMSNWrapReceive(t *testing.T) {
	r := newRig(t, true)
	r.msn, r.qp.rx.msn[wire.QNSend] = 0xfffffffe, 0xfffffffe
	for range 4 {
		r.feed(r.send([]byte("across"), 0))
	}
	if got := r.poll(); len(got) != 4 || r.over {
		t.Fatalf("%d Sends arrived: %v", len(got), r.qp.rx.err)
	}
	if r.qp.rx.msn[wire.QNSend] != 2 {
		t.Fatalf("next MSN %#x", r.qp.rx.msn[wire.QNSend])
	}
}

// A window is revoked between the moment when its memory turned out to be gone and the
// one when the receiver tells of it. Nobody waits for the data any more; that must not
// be taken for a memory region without an owner, which ends the connection. When it is
// open over other memory by then, that has no fault either.
func TestFaultInRevokedWindow(t *testing.T) {
	for _, again := range []bool{false, true} {
		for _, crc := range rigModes {
			r := newRig(t, crc)
			w, stag, base := r.window(make([]byte, 60000), mem.RemoteWrite|mem.ZeroBased)
			b := r.tagged(wire.Write, stag, base, true, fill(60000, 1))
			r.feed(b[:5000])
			w.r.Revoke()
			if again {
				w.r.OpenKey(&r.qp.Mem, [][]byte{make([]byte, 4096)}, mem.RemoteWrite|mem.ZeroBased, uint8(stag))
			}
			r.qp.rx.placeFault()
			r.feed(b[5000:])
			r.feed(r.send([]byte("goes on"), 0))
			if got := r.poll(); len(got) != 1 || r.over {
				t.Fatalf("the connection has ended: %v", r.qp.rx.err)
			}
			if n := w.r.Faults(); n != 0 {
				t.Errorf("%d faults of memory that has none", n)
			}
		}
	}
}

// The memory of an atomic operation is taken away between the header and the CRC: the
// operation is not done, and the connection ends with the reason.
func TestAtomicOnRevokedMemory(t *testing.T) {
	r := newRig(t, true)
	r.qp.start.ext = extOn
	word := make([]uint64, 1)
	p := unsafe.Slice((*byte)(unsafe.Pointer(&word[0])), 8)
	w, stag, base := r.window(p, mem.RemoteAtomic|mem.RemoteWrite)
	h := wire.Untagged{Ctrl: wire.Ctrl(wire.AtomicReq, true), QN: wire.QNRead, MSN: 1}
	a := wire.Atomic{Op: wire.FetchAdd, STag: stag, TO: base, Data: 1}
	b := r.fpdu(a.Append(h.Append(nil)))
	r.feed(b[:len(b)-2])
	w.r.Revoke()
	r.feed(b[len(b)-2:])
	var te *Terminated
	if !r.over || !errors.As(r.qp.rx.err, &te) || te.Cause != wire.CauseRemoteSTag {
		t.Errorf("ended: %v, because of %v", r.over, r.qp.rx.err)
	}
	if word[0] != 0 {
		t.Error("memory was changed after it had been invalidated")
	}
}

// A request ends by what happened to it first: what its answer says counts where nothing had, and that its
// owner has discarded it counts always.
func TestAnswersOfRequests(t *testing.T) {
	r := newRig(t, true)
	for i, c := range []struct {
		before, answer, want verbs.Status
		flags                verbs.SendFlags
	}{
		{verbs.StatusSuccess, verbs.StatusSuccess, verbs.StatusSuccess, 0},
		{verbs.StatusSuccess, verbs.StatusLocalFault, verbs.StatusLocalFault, 0},
		{verbs.StatusLocalFault, verbs.StatusSuccess, verbs.StatusLocalFault, 0},
		{verbs.StatusLocalProtection, verbs.StatusLocalFault, verbs.StatusLocalProtection, 0},
		{verbs.StatusLocalFault, verbs.StatusSuccess, verbs.StatusDiscarded, verbs.FlagDiscard},
	} {
		e, _, _ := r.read(make([]byte, 8))
		e.Status, e.Flags = c.before, c.flags
		r.qp.Mu.Lock()
		r.qp.reads.answeredLocked(c.answer)
		left := r.qp.reads.inFlight()
		r.qp.Mu.Unlock()
		if !e.Done || e.Status != c.want || left != 0 {
			t.Errorf("%d: done %v, %q, want %q; %d are left", i, e.Done, e.Status, c.want, left)
		}
	}
}

// While an FPDU is on its way, its window is closed and opened over other memory,
// and the key happens to be the same: the rest must not go there.
func TestSameKeyAgain(t *testing.T) {
	for _, got := range []int{1, 5000} {
		for _, crc := range rigModes {
			r := newRig(t, crc)
			old := make([]byte, 60000)
			w, stag, base := r.window(old, mem.RemoteWrite|mem.ZeroBased)
			b := r.tagged(wire.Write, stag, base, true, fill(len(old), 1))
			r.feed(b[:16+got])
			other := make([]byte, 4096)
			w.r.Revoke()
			if again, _ := w.r.OpenKey(&r.qp.Mem, [][]byte{other}, mem.RemoteWrite|mem.ZeroBased, uint8(stag)); again != stag {
				t.Fatal("the key is another one")
			}
			r.feed(b[16+got:])
			if !bytes.Equal(other, make([]byte, len(other))) {
				t.Error("other memory was written")
			}
			var te *Terminated
			if !r.over || !errors.As(r.qp.Err, &te) || te.Cause != wire.CauseSTag {
				t.Errorf("the connection ended by: %v", r.qp.Err)
			}
			w.close()
		}
	}
}

// The same for memory that the peer is reading: what follows comes from where the
// region is now, never from beyond it.
func TestSameKeyAgainSending(t *testing.T) {
	r := newRig(t, false)
	qp := r.qp
	const size = 3 * roundBytes
	w, stag, base := r.window(make([]byte, size), mem.RemoteRead|mem.ZeroBased)
	defer w.close()
	qp.tx.allowed = true
	qp.asked.putLocked(irqEntry{size: size, sinkSTag: 1, srcSTag: stag, srcTO: base})
	t0 := &qp.tx
	build := func() {
		qp.tx.io.Lock()
		defer qp.tx.io.Unlock()
		qp.tx.buildRound()
		t0.round.taken(t0.round.bytes)
	}
	build()
	if !t0.cur.active || t0.cur.off == 0 {
		t.Fatal("the Response has not begun")
	}
	w.r.Revoke()
	w.r.OpenKey(&qp.Mem, [][]byte{make([]byte, 4096), make([]byte, size-4096)}, mem.RemoteRead|mem.ZeroBased, uint8(stag))
	build()
	if t0.reason != nil {
		t.Fatal(t0.reason)
	}
	w.r.Revoke()
	w.r.OpenKey(&qp.Mem, [][]byte{make([]byte, 4096)}, mem.RemoteRead|mem.ZeroBased, uint8(stag))
	build()
	var te *Terminated
	if !errors.As(t0.reason, &te) {
		t.Fatalf("the region is shorter now: %v", t0.reason)
	}
}

// A window that is bound twice at the same time is lent once.
func TestBoundTwice(t *testing.T) {
	r := newRig(t, false)
	w, _, _ := r.window(make([]byte, 8192), scratch)
	w.r.Open(&r.qp.Mem, [][]byte{make([]byte, 8192)}, scratch)
	l := &r.qp.lent
	if n, _, bytes := l.lent(); n != 1 || bytes != 8192 || l.head != &w.r || w.r.Link.Next != nil {
		t.Errorf("lent %d times, %d bytes", n, bytes)
	}
	w.close()
	if n, _, bytes := l.lent(); n != 0 || bytes != 0 || l.head != nil {
		t.Error("a closed window is counted as lent")
	}
}

// DiscardRead means a Read of the user, not one that the engine has made.
func TestDiscardReadNotHidden(t *testing.T) {
	r := newRig(t, false)
	r.qp.Mu.Lock()
	r.qp.SQ.Hide(verbs.OpRead)
	r.qp.Mu.Unlock()
	if r.qp.DiscardRead(0) {
		t.Error("a Read of the engine was discarded")
	}
	r.qp.Mu.Lock()
	e, err := r.qp.PostLocked(0, verbs.OpRead)
	if err != nil {
		t.Fatal(err)
	}
	e.Add(make([]byte, 8), mem.LocalKey)
	r.qp.Mu.Unlock()
	if !r.qp.DiscardRead(0) || r.qp.SQ.At(0).Flags&verbs.FlagDiscard != 0 || e.Flags&verbs.FlagDiscard == 0 {
		t.Error("another Read was discarded")
	}
}

// A context that ends in the last moment of the start-up ends the start-up: its
// deadline must not hit the connection later.
func TestStartupCancelledLate(t *testing.T) {
	r := newRig(t, false)
	ctx, cancel := context.WithCancel(context.Background())
	err := startup(ctx, r.peer, 0, time.Minute, func() error { cancel(); return nil })
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("startup: %v", err)
	}
}
