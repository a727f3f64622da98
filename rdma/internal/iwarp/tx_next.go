package iwarp

import (
	"errors"

	"softiser/rdma/internal/mem"
	"softiser/rdma/internal/mpa"
	"softiser/rdma/internal/verbs"
	"softiser/rdma/internal/wire"
)

// Which message is next. Most of them are plain: they follow each other without the lock
// of the queue (follow). Who has to know more before a message starts takes it (next).

// sqAhead is how far the transmitter is ahead of the send queue, whose Next moves under QP.Mu.
type sqAhead struct {
	built uint32 // requests that SQ.Next is still to pass
	known uint32 // behind these: requests that were there when next last had the lock
}

// enterLocked advances the send queue past the requests that have been built.
func (a *sqAhead) enterLocked(q *verbs.SendQueue) {
	q.Next += a.built
	a.built = 0
}

// peek is the request behind those that have been built; nil where it takes the lock to know it.
func (a *sqAhead) peek(q *verbs.SendQueue) *verbs.WQE {
	if a.known == 0 {
		return nil
	}
	return q.At(q.Next + a.built)
}

// lastKey is the key of local memory that was looked up last: most of what is sent lies in one
// region. It is forgotten where the memory of the key may have been given back.
type lastKey struct {
	key uint32
	mem []byte
}

func (l *lastKey) forget() { l.key, l.mem = mem.LocalKey, nil }

// holds reports whether p lies in the memory of key, which is not mem.LocalKey.
func (l *lastKey) holds(qp *QP, key uint32, p []byte) bool {
	return key == l.key && mem.Within(p, l.mem) || l.look(qp, key, p)
}

// look is holds where the key was not the last one, or may name other memory by now.
func (l *lastKey) look(qp *QP, key uint32, p []byte) bool {
	l.key, l.mem = key, qp.ownMemory(key, false)
	return mem.Within(p, l.mem)
}

// next chooses the next message: Read Responses and the send queue take turns, so
// that neither starves the other. A message is always finished before the next is
// begun: siw does not accept two tagged messages interleaved.
func (t *transmitter) next() bool {
	qp := t.qp
	qp.Mu.Lock()
	defer qp.Mu.Unlock()
	t.ahead.enterLocked(&qp.SQ)
	if qp.Dying.Load() || !t.allowed || t.local != nil {
		return false
	}
	// A Read or Send as ready-to-receive message goes before everything else.
	if t.empty != 0 && (t.stats.FPDUs > 0 || !qp.start.initiator || qp.start.rtr&^mpa.RTRWrite == 0) {
		t.emptyWrites(t.empty)
		t.empty = 0
	}
	e := t.runnableLocked()
	waits := !qp.asked.empty()
	if waits && (e == nil || !t.sqTurn) {
		t.sqTurn = true
		t.startResponseLocked()
		return t.cur.active
	}
	if e == nil {
		return false
	}
	t.sqTurn = false
	if e.Op.Local() {
		// Local requests run when everything before them has been sent; see runLocal.
		t.local = e
		qp.SQ.Next++
		return false
	}
	t.keys.forget()                // e may have been posted after the memory of the key was given back
	if t.ahead.known = 0; !waits { // else the next message is a response
		t.ahead.known = qp.SQ.Tail - qp.SQ.Next - 1
	}
	return t.startLocked(e)
}

// follow starts the next request, without the lock of the queue, if it was there when next last
// looked and nothing has to be known before it starts. Such an entry stays as it is where it is
// until it has been sent.
func (t *transmitter) follow() bool {
	e := t.ahead.peek(&t.qp.SQ)
	if e == nil || !plain(e.Op) || e.Flags&verbs.FlagFence != 0 {
		return false
	}
	t.ahead.known--
	if t.holdsKeys(e) {
		t.cur.startPlain(e, &t.msn)
	}
	return t.cur.active
}

// startResponseLocked makes the oldest request of the peer the message in progress.
func (t *transmitter) startResponseLocked() {
	q := t.qp.asked.takeLocked()
	m := &t.cur
	*m = txMsg{active: true, resp: true, op: wire.ReadResponse, stag: q.sinkSTag, to: q.sinkTO, length: q.size, srcTag: q.srcSTag, srcTO: q.srcTO}
	if q.atomic {
		m.op = wire.AtomicResp
		m.msn = t.msn.take(wire.QNAtomicResp)
	}
}

var errLKey = errors.New("rdma: an SGE lies outside the memory region of its key")

// holdsKeys reports whether the keys of e are those of its memory; if not, there is a reason
// to end.
func (t *transmitter) holdsKeys(e *verbs.WQE) bool {
	for i, p := range e.Segs {
		switch k := e.LKeys[i]; {
		case k == mem.LocalKey:
		case e.Op.Answered():
			if !t.qp.checkLKey(k, p, true) {
				t.reason = errLKey
				return false
			}
		default:
			if !t.keys.holds(t.qp, k, p) {
				t.reason = errLKey
				return false
			}
		}
	}
	return true
}

// startLocked makes e the message in progress.
func (t *transmitter) startLocked(e *verbs.WQE) bool {
	qp := t.qp
	if !t.holdsKeys(e) {
		return false
	}
	if extension(e.Op) && qp.start.ext != extOn || e.Op.Answered() && len(qp.reads.orq) == 0 {
		e.Status, e.Done, e.End = verbs.StatusUnsupported, true, t.round.off
		qp.SQ.Next++
		return true
	}
	if plain(e.Op) || e.Op == verbs.OpWriteImm {
		t.cur.startPlain(e, &t.msn)
		return true
	}
	m := &t.cur
	*m = txMsg{active: true, e: e, length: e.Length}
	switch e.Op {
	case verbs.OpImm:
		m.startImm(&t.msn)
	case verbs.OpRead:
		m.op = wire.ReadRequest
		m.msn = t.msn.take(wire.QNRead)
		s := qp.reads.sentLocked(e)
		m.stag, m.to = s.Open(&qp.Mem, e.Segs, mem.Sink)
		if e.Flags&verbs.FlagDiscard != 0 {
			s.Discard()
		}
	case verbs.OpFetchAdd, verbs.OpCmpSwap:
		m.op = wire.AtomicReq
		m.msn = t.msn.take(wire.QNRead)
		s := qp.reads.sentLocked(e)
		s.Open(&qp.Mem, e.Segs, mem.Sink)
	}
	return true
}
