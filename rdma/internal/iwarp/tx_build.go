package iwarp

import (
	"encoding/binary"
	"errors"
	"runtime/debug"
	"unsafe"

	"softiser/internal/memfault"
	"softiser/internal/resident"
	"softiser/rdma/internal/mem"
	"softiser/rdma/internal/mpa"
	"softiser/rdma/internal/verbs"
	"softiser/rdma/internal/wire"
)

var (
	errTouch = errors.New("memory fault")
	errLKey  = errors.New("rdma: an SGE lies outside the memory region of its key")
)

// buildRound fills round.iov. Memory is touched here by the CRC, by the copy of small
// payloads, and so that it is in the cache when the kernel copies it; if that faults
// (a truncated mapping), the connection ends instead of the process.
//
// Preconditions: the caller is the transmitter and holds io; round.iov is empty.
func (t *transmitter) buildRound() {
	t.round.enter()
	old := debug.SetPanicOnFault(true)
	defer func() {
		debug.SetPanicOnFault(old)
		t.keyed = nil
		if r := recover(); r != nil {
			if !memfault.Is(r) {
				panic(r)
			}
			t.reason = errTouch
			t.round.undo()
			t.round.iov = t.round.vec
		}
	}()
	limit := roundBytes
	if t.crc {
		limit = roundRead
	}
	t.round.begin(limit)
	t.known = 0
	t.fetch()
	for t.reason == nil && !t.round.full() {
		if !t.cur.active && !t.follow() && !t.next() {
			break
		}
		if !t.segment() {
			break
		}
	}
	t.round.iov = t.round.vec
}

// maxFetch is how many payloads are fetched ahead for a round.
const maxFetch = 64

// fetch asks the processor for the payloads of the Writes of this round, all of them before the
// first is looked at, and in a row, with nothing in between: see resident.Fetch.
func (t *transmitter) fetch() {
	qp := t.qp
	q := &qp.SQ
	var at [maxFetch]*byte
	bytes, n := t.round.bytes, 0
	qp.Mu.Lock()
	t.round.mayRef = qp.zc.used && !qp.zc.off
	for i := q.Next; i != q.Tail && bytes < t.round.limit && n < len(at); i++ {
		e := q.At(i)
		if bytes += int(e.Length); e.Op == verbs.OpWrite && e.Length >= directMin {
			at[n] = unsafe.SliceData(e.Segs[0])
			n++
		}
	}
	qp.Mu.Unlock()
	for _, p := range at[:n] {
		resident.Fetch(p)
	}
}

// next chooses the next message: Read Responses and the send queue take turns, so
// that neither starves the other. A message is always finished before the next is
// begun: siw does not accept two tagged messages interleaved.
func (t *transmitter) next() bool {
	qp := t.qp
	qp.Mu.Lock()
	defer qp.Mu.Unlock()
	t.enterLocked()
	if qp.Dying.Load() || !t.allowed || t.local != nil {
		return false
	}
	// A Read or Send as ready-to-receive message goes before everything else.
	if t.empty != 0 && (t.stats.FPDUs > 0 || !qp.start.initiator || qp.start.rtr&^mpa.RTRWrite == 0) {
		t.emptyWrites(t.empty)
		t.empty = 0
	}
	e := t.runnableLocked()
	waits := qp.reads.irqHead != qp.reads.irqTail
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
	t.key, t.keyed = mem.LocalKey, nil // e may have been posted after the memory of the key was given back
	if t.known = 0; !waits {           // else the next message is a response
		t.known = qp.SQ.Tail - qp.SQ.Next - 1
	}
	return t.startLocked(e)
}

// follow starts the next request, without the lock of the queue, if it was there when next last
// looked and nothing has to be known before it starts. Such an entry stays as it is where it is
// until it has been sent.
func (t *transmitter) follow() bool {
	if t.known == 0 {
		return false
	}
	e := t.qp.SQ.At(t.qp.SQ.Next + t.built)
	if !plain(e.Op) || e.Flags&verbs.FlagFence != 0 {
		return false
	}
	t.known--
	if t.holdsKeys(e) {
		t.startPlain(e)
	}
	return t.cur.active
}

// startResponseLocked makes the oldest request of the peer the message in
// progress. The slot is free from now on: the peer sends its next request only
// when it has our response.
func (t *transmitter) startResponseLocked() {
	qp := t.qp
	q := &qp.reads.irq[int(qp.reads.irqHead)%len(qp.reads.irq)]
	qp.reads.irqHead++
	m := &t.cur
	*m = txMsg{active: true, resp: true, op: wire.ReadResponse, stag: q.sinkSTag, to: q.sinkTO, length: q.size, srcTag: q.srcSTag, srcTO: q.srcTO}
	if q.atomic {
		m.op = wire.AtomicResp
		m.msn = t.take(wire.QNAtomicResp)
	}
}

// plain: a message that needs nothing but its memory.
func plain(op verbs.Opcode) bool {
	return op == verbs.OpSend || op == verbs.OpSendInv || op == verbs.OpWrite
}

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
			if k != t.key || !mem.Within(p, t.keyed) { // the key may name other memory by now
				t.key, t.keyed = k, t.qp.ownMemory(k, false)
			}
			if !mem.Within(p, t.keyed) {
				t.reason = errLKey
				return false
			}
		}
	}
	return true
}

// startPlain makes a plain message, or the Write of a WriteImm, the one in progress.
func (t *transmitter) startPlain(e *verbs.WQE) {
	m := &t.cur
	*m = txMsg{active: true, e: e, length: e.Length}
	m.cur.Set(e.Segs)
	if e.Op == verbs.OpWrite || e.Op == verbs.OpWriteImm {
		m.op = wire.Write
		m.stag, m.to = e.Remote.STag, e.Remote.TO
		m.imm = e.Op == verbs.OpWriteImm
		return
	}
	m.op = wire.Send
	if e.Op == verbs.OpSendInv {
		m.op = wire.SendInv
	}
	if e.Flags&verbs.FlagSolicited != 0 {
		m.op += wire.SendSE - wire.Send
	}
	m.msn = t.take(wire.QNSend)
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
		t.startPlain(e)
		return true
	}
	m := &t.cur
	*m = txMsg{active: true, e: e, length: e.Length}
	switch e.Op {
	case verbs.OpImm:
		m.startImm(t)
	case verbs.OpRead:
		m.op = wire.ReadRequest
		m.msn = t.take(wire.QNRead)
		s := qp.reads.sentLocked(e)
		m.stag, m.to = s.Open(&qp.Mem, e.Segs, mem.Sink)
		if e.Flags&verbs.FlagDiscard != 0 {
			s.Discard()
		}
	case verbs.OpFetchAdd, verbs.OpCmpSwap:
		m.op = wire.AtomicReq
		m.msn = t.take(wire.QNRead)
		s := qp.reads.sentLocked(e)
		s.Open(&qp.Mem, e.Segs, mem.Sink)
	}
	return true
}

func (t *transmitter) take(qn int) uint32 {
	n := t.msn[qn]
	t.msn[qn]++
	return n
}

func (m *txMsg) startImm(t *transmitter) {
	m.op = wire.Immediate
	if m.e.Flags&verbs.FlagSolicited != 0 {
		m.op = wire.ImmediateSE
	}
	m.msn = t.take(wire.QNSend)
	m.imm, m.length, m.off = false, 0, 0
}

// checkLKey reports whether p lies inside the region that lkey names.
func (qp *QP) checkLKey(lkey uint32, p []byte, write bool) bool {
	return mem.Within(p, qp.ownMemory(lkey, write))
}

// ownMemory is the memory of the region that lkey names; nil when it names none that may be used.
func (qp *QP) ownMemory(lkey uint32, write bool) []byte {
	if r := qp.Dev.Table.Lookup(lkey); r != nil {
		return r.Own(qp.PD, lkey, write)
	}
	return nil
}

// segmentLen is how much payload the next segment of the message in progress carries.
func (t *transmitter) segmentLen(info *wire.Info) int {
	m := &t.cur
	if !info.Data {
		return 0
	}
	if !info.Tagged {
		return int(min(m.length-m.off, uint32(t.maxUntagged)))
	}
	n := int(min(m.length-m.off, uint32(t.maxTagged)))
	if rest := int(m.length-m.off) - n; rest > 0 && rest < directMin && n >= 2*directMin {
		n -= directMin // no short last segment, which the peer would not place directly
	}
	return n
}

// aimSource makes the message in progress, a Read Response, go on with the n bytes that
// are next in its region, which is held then; nil when the peer may not read them any more.
func (t *transmitter) aimSource(n int) *mem.Region {
	m := &t.cur
	r, off, f := t.qp.find(m.srcTag, m.srcTO+uint64(m.off), uint64(n), mem.RemoteRead)
	if f != mem.None {
		t.reason = &Terminated{Cause: faultCauses[f].rdmap, Detail: "memory was invalidated before the peer's RDMA Read had been answered"}
		return nil
	}
	if m.src != r || m.gen != r.Gen() || m.off == 0 {
		m.src, m.gen = r, r.Gen()
		m.cur.Set(r.Pieces())
		m.cur.Skip(int(off))
	} else {
		// Continue in the same memory.
		m.cur.Attach(r.Pieces())
	}
	return r
}

// header appends the headers of a segment with n bytes of payload: MPA's length, DDP's,
// and RDMAP's of its type.
func (t *transmitter) header(info *wire.Info, n int, last bool) {
	m := &t.cur
	t.round.hdr = binary.BigEndian.AppendUint16(t.round.hdr, uint16(info.Hdr+n))
	if info.Tagged {
		h := wire.Tagged{Ctrl: wire.Ctrl(m.op, last), STag: m.stag, TO: m.to + uint64(m.off)}
		t.round.hdr = h.Append(t.round.hdr)
		return
	}
	u := wire.Untagged{Ctrl: wire.Ctrl(m.op, last), QN: info.QN, MSN: m.msn, MO: m.off}
	if m.op.Invalidates() {
		u.Inv = m.e.Inv
	}
	t.round.hdr = u.Append(t.round.hdr)
	switch m.op {
	case wire.ReadRequest:
		h := wire.ReadReq{SinkSTag: m.stag, SinkTO: m.to, Size: m.length, SrcSTag: m.e.Remote.STag, SrcTO: m.e.Remote.TO}
		t.round.hdr = h.Append(t.round.hdr)
	case wire.AtomicReq:
		a := &m.e.Atom
		h := wire.Atomic{Op: wire.FetchAdd, ID: m.msn, STag: m.e.Remote.STag, TO: m.e.Remote.TO, Data: a.Data, Mask: a.Mask, Compare: a.Compare, CompareMask: a.CompareMask}
		if m.e.Op == verbs.OpCmpSwap {
			h.Op = wire.CmpSwap
		}
		t.round.hdr = h.Append(t.round.hdr)
	case wire.AtomicResp:
		h := wire.AtomicReply{ID: m.stag, Value: m.to}
		t.round.hdr = h.Append(t.round.hdr)
	case wire.Immediate, wire.ImmediateSE:
		t.round.hdr = binary.BigEndian.AppendUint64(t.round.hdr, m.e.Imm)
	}
}

// segment appends the next DDP segment of the message in progress to the round.
// It returns false when the round has no room for it.
func (t *transmitter) segment() bool {
	m := &t.cur
	if !m.active {
		return true
	}
	info := &wire.Ops[m.op]
	n := t.segmentLen(info)
	if !m.resp || n == 0 {
		return t.add(info, n, nil)
	}
	r := t.aimSource(n)
	if r == nil {
		return false
	}
	defer func() { m.cur.Detach(); r.Release() }()
	return t.add(info, n, r)
}

// add appends a segment of the message in progress with n bytes, which are those of r if that
// is not nil.
func (t *transmitter) add(info *wire.Info, n int, r *mem.Region) bool {
	m := &t.cur
	if n > copyMax && !m.cur.Together(n) {
		if fit, _ := m.cur.Fit(n, cap(t.round.vec)-len(t.round.vec)-2); fit < n {
			if len(t.round.vec) > 0 {
				return false
			}
			n = fit &^ 3 // scattered into very many pieces: a shorter segment
		}
	}
	last := !info.Data || m.off+uint32(n) == m.length
	t.round.mark()
	start := len(t.round.hdr)
	t.header(info, n, last)
	t.payload(start, n, &m.cur)
	if info.Tagged && n <= copyMax {
		t.stats.CopiedTagged += uint64(n)
	}
	if r != nil && n > copyMax {
		t.round.refs = append(t.round.refs, txRef{r, t.round.bytes})
	}
	t.stats.FPDUs++
	m.off += uint32(n)
	if last {
		t.finish(m)
	}
	return true
}

// zeroes are what pads are made of.
var zeroes [3]byte

// payload adds header bytes [start:], n bytes of payload from c, pad and CRC to
// the round.
func (t *transmitter) payload(start, n int, c *mem.Cursor) {
	var crc uint32
	if n <= copyMax {
		for left := n; left > 0; {
			p := c.Next(left)
			t.round.hdr = append(t.round.hdr, p...)
			left -= len(p)
		}
		if t.crc {
			crc = wire.CRC(0, t.round.hdr[start:])
		}
		t.round.piece(start)
	} else {
		if t.crc {
			crc = wire.CRC(0, t.round.hdr[start:])
		}
		t.round.piece(start)
		m := &t.cur
		if m.off == 0 {
			byRef := t.round.mayRef && !m.resp // see zerocopy.write
			long := !t.crc && !byRef && m.length >= askMin
			m.load = long && !t.lately.again(*c)
			if m.ask = m.load || long && !m.resp; m.ask {
				t.there = resident.Asked{}
			}
		}
		for left := n; left > 0; {
			if m.ask { // once false, the rest is not asked for: that would be a call for each piece
				rest := *c
				m.ask = t.there.There(rest.Next(int(m.length-m.off)-(n-left)), left)
			}
			p := c.Next(left)
			switch {
			case t.crc:
				crc = wire.CRC(crc, p) // reads all of it, so that it is resident
			case m.ask && m.load:
				resident.Load(p) // likewise
				t.round.limit = roundRead
			case !m.ask:
				t.round.soon = t.round.soon && resident.Holds(p)
			}
			t.round.put(p)
			left -= len(p)
		}
		t.round.open = false
		t.round.bytes += n
		t.round.off += uint64(n)
		t.stats.Direct += uint64(n)
	}
	start2 := len(t.round.hdr)
	if pad := wire.Pad(int(binary.BigEndian.Uint16(t.round.hdr[start:]))); pad > 0 {
		t.round.hdr = append(t.round.hdr, zeroes[:pad]...)
		if t.crc {
			crc = wire.CRC(crc, zeroes[:pad])
		}
	}
	t.round.hdr = wire.AppendCRC(t.round.hdr, crc)
	t.round.piece(start2)
}

// finish is called when the last segment of m has been built.
func (t *transmitter) finish(m *txMsg) {
	t.stats.Msgs[m.op]++
	t.stats.Bytes += uint64(m.off)
	m.active = false
	if m.resp {
		return
	}
	if m.imm {
		m.startImm(t)
		m.active = true
		return
	}
	m.e.End = t.round.off
	t.built++
}

// enterLocked advances the send queue past the requests that have been built.
func (t *transmitter) enterLocked() {
	t.qp.SQ.Next += t.built
	t.built = 0
}
