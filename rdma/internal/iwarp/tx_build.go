package iwarp

import (
	"encoding/binary"
	"errors"
	"runtime/debug"
	"unsafe"

	"softiser/internal/memfault"
	"softiser/internal/resident"
	"softiser/rdma/internal/mem"
	"softiser/rdma/internal/verbs"
	"softiser/rdma/internal/wire"
)

var errTouch = errors.New("memory fault")

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
		t.keys.forget()
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
	if t.form.crc {
		limit = roundRead
	}
	t.round.begin(limit)
	t.ahead.known = 0
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

// segment appends the next DDP segment of the message in progress to the round.
// It returns false when the round has no room for it.
func (t *transmitter) segment() bool {
	m := &t.cur
	if !m.active {
		return true
	}
	info := &wire.Ops[m.op]
	n := t.form.segmentLen(m, info)
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
	t.round.hdr = m.appendHeader(t.round.hdr, info, n, last)
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
	r := &t.round
	var crc uint32
	if n <= copyMax {
		for left := n; left > 0; {
			p := c.Next(left)
			r.hdr = append(r.hdr, p...)
			left -= len(p)
		}
		if t.form.crc {
			crc = wire.CRC(0, r.hdr[start:])
		}
		r.piece(start)
	} else {
		if t.form.crc {
			crc = wire.CRC(0, r.hdr[start:])
		}
		r.piece(start)
		crc = t.refer(n, c, crc)
	}
	start2 := len(r.hdr)
	if pad := wire.Pad(int(binary.BigEndian.Uint16(r.hdr[start:]))); pad > 0 {
		r.hdr = append(r.hdr, zeroes[:pad]...)
		if t.form.crc {
			crc = wire.CRC(crc, zeroes[:pad])
		}
	}
	r.hdr = wire.AppendCRC(r.hdr, crc)
	r.piece(start2)
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
		m.startImm(&t.msn)
		m.active = true
		return
	}
	m.e.End = t.round.off
	t.ahead.built++
}
