package nvmetcp

import (
	"unsafe"

	"softiser/internal/list"
	"softiser/internal/segs"
	"softiser/internal/sockio"
)

// guess is how a host takes the data of many short reads by one system call, each
// straight to its buffer: the call is aimed at what is most likely to come, which is
// the data of the reads in the order in which they were submitted.
//
//	... rest of the PDU under way │ header │ data of read 1 │ header │ data of read 2 │ ... │ read-ahead
//
// What has come is believed only as far as its headers say that it is where it belongs.
// From the first that says something else, everything is moved to the read-ahead, and
// parsed like any other bytes; the buffers that were written to by mistake belong to
// reads that are still outstanding, whose data is yet to come. A controller that answers
// in another order is not guessed at for a while.
//
// Owned by the receive goroutine.
type guess struct {
	h     *Host
	list  []guessed
	size  int  // bytes that the list covers; as far into the read-ahead lies what comes behind
	score int  // not negative: guesses are right
	most  int  // guesses to make, by how many came true of late
	resp  bool // each read is followed by a CapsuleResp
}

// guessed is a PDU that is expected, with what follows it.
type guessed struct {
	io   *hostIO
	off  uint32
	data []byte // where its data goes
	head [DataLen]byte
	resp [CapsuleRespLen]byte
	then bool // resp is expected
}

const (
	maxGuesses   = 64
	maxGuessRead = 32 << 10 // longer data has system calls of its own
	goodGuess    = 1
	badGuess     = 8
	bestScore    = 32
	worstScore   = -64
)

func (g *guess) init(h *Host) { g.h, g.score, g.most = h, bestScore, 1 }

// folded notes that a read has been answered without a CapsuleResp.
func (g *guess) folded() { g.resp = false }

// foresee implements role: it appends where the PDUs go that are expected behind the
// one under way. false: there is nothing to expect.
func (h *Host) foresee(v []sockio.Vec) ([]sockio.Vec, bool) {
	g, r := &h.guess, &h.rx
	if h.digests != 0 || h.cfg.HPDA != 0 || r.r != r.w || r.phase != rxCommon && r.phase != rxData {
		return v, false
	}
	if g.score < 0 {
		g.score++
		return v, false
	}
	g.list, g.size = g.list[:0], 0
	h.mu.Lock()
	tail := g.choose()
	h.mu.Unlock()
	if len(g.list) == 0 && tail == readAhead {
		return v, false
	}
	for i := range g.list {
		e := &g.list[i]
		v = sockio.Append(v, e.head[:])
		v = sockio.Append(v, e.data)
		if e.then {
			v = sockio.Append(v, e.resp[:])
		}
	}
	return sockio.Append(v, r.buf[g.size:g.size+tail]), true
}

// choose fills the list and returns how much to read behind it. The caller holds mu.
func (g *guess) choose() (tail int) {
	h, r := g.h, &g.h.rx
	room := len(r.buf) - readAhead
	for io := h.reads.list.First(); io != nil && len(g.list) < g.most; io = io.node.Next() {
		off := io.got
		if io == h.io && r.phase == rxData {
			off += r.layout.Data
		}
		n := io.total - off
		if n == 0 || io.last || io.fault {
			continue
		}
		e := guessed{io: io, off: off, then: g.resp}
		if n > maxGuessRead || len(io.cmd.Data) > 1 {
			return DataLen
		}
		e.data = io.cmd.Data[0][off:]
		if e.size() > room || g.overlaps(e.data) {
			return DataLen
		}
		room -= e.size()
		g.size += e.size()
		g.list = append(g.list, e)
	}
	return readAhead
}

// overlaps reports whether somebody reads to the same memory twice: then what is there
// by mistake could not be moved.
func (g *guess) overlaps(b []byte) bool {
	lo := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	for i := range g.list {
		p := uintptr(unsafe.Pointer(unsafe.SliceData(g.list[i].data)))
		if lo < p+uintptr(len(g.list[i].data)) && p < lo+uintptr(len(b)) {
			return true
		}
	}
	return false
}

// foreseen implements role: n bytes have come behind the PDU that was under way.
func (h *Host) foreseen(n int) {
	g, r := &h.guess, &h.rx
	all := n
	for i := range g.list {
		e := &g.list[i]
		if n == 0 {
			g.most = max(2*i, 1)
			return
		}
		if n < DataLen {
			r.w = copy(r.buf, e.head[:n])
			return
		}
		if !e.right() {
			g.miss(i, 0, n)
			return
		}
		n -= DataLen
		copy(r.header[:], e.head[:])
		r.layout = Layout{HLen: DataLen, PDO: DataLen, Data: uint32(len(e.data))}
		if r.bad = h.place(TypeC2HData); r.bad != nil {
			r.phase = rxData
			return
		}
		r.phase = rxData
		k := min(n, len(e.data))
		r.took(k)
		if n -= k; r.left > 0 {
			return
		}
		h.conn.finish(nil)
		r.phase, r.need = rxCommon, CHLen
		if g.score < bestScore {
			g.score += goodGuess
		}
		if !e.then || n == 0 {
			continue
		}
		if n < CapsuleRespLen {
			r.w = copy(r.buf, e.resp[:n])
			return
		}
		if Type(e.resp[0]) != TypeCapsuleResp {
			g.miss(i, DataLen+len(e.data), n)
			return
		}
		// It is parsed from the read-ahead like any other.
		n -= CapsuleRespLen
		r.r, r.w = 0, copy(r.buf, e.resp[:])
		if r.bad = h.parse(); r.bad != nil {
			return
		}
		r.r, r.w = 0, 0
	}
	g.most = min(2*g.most, maxGuesses)
	if all > g.size {
		r.r, r.w = g.size, all
	}
}

// right reports whether the header that has come is the one that was expected.
func (e *guessed) right() bool {
	d := (*Data)(e.head[:])
	h, n := d.CH(), uint32(len(e.data))
	return h.Type() == TypeC2HData && h.Flags()&^(FlagLast|FlagSuccess) == 0 && h.HLen() == DataLen && h.PDO() == DataLen &&
		h.PLen() == DataLen+n && d.CCCID() == e.io.cmd.SQE.CID() && d.Offset() == e.off && d.Length() == n
}

// unforeseen implements role.
func (h *Host) unforeseen() bool {
	h.guess.score = worstScore
	return true
}

// miss moves n bytes to the read-ahead, which begin skip bytes into what was expected at
// i. What lies there already, behind the list, stays.
func (g *guess) miss(i, skip, n int) {
	r := &g.h.rx
	g.score = max(g.score-badGuess, worstScore)
	at := 0
	for j := 0; j < i; j++ {
		at += g.list[j].size()
	}
	at += skip
	r.r, r.w = at, at+n
	end := min(r.w, g.size)
	put := func(b []byte) {
		if skip >= len(b) {
			skip -= len(b)
			return
		}
		b = b[skip:]
		skip = 0
		if at < end {
			b = b[:min(len(b), end-at)]
			segs.Copy(r.buf[at:], b) // of memory that has gone nothing is left to be believed
			at += len(b)
		}
	}
	for ; i < len(g.list) && at < end; i++ {
		e := &g.list[i]
		put(e.head[:])
		put(e.data)
		if e.then {
			put(e.resp[:])
		}
	}
}

func (e *guessed) size() int {
	n := DataLen + len(e.data)
	if e.then {
		n += CapsuleRespLen
	}
	return n
}

// readQueue is the commands that await data, in the order in which they were submitted.
// Guarded by conn.mu.
type readQueue struct {
	list list.List[hostIO]
	n    int // of them: longer than what is copied
}

func (q *readQueue) push(io *hostIO) {
	q.list.Push(&io.node, io)
	if io.total > maxGuessRead {
		q.n++
	}
}

func (q *readQueue) remove(io *hostIO) {
	q.list.Remove(&io.node)
	if io.total > maxGuessRead {
		q.n--
	}
}

// aheadLocked implements role: while long data is expected only the next header is read
// ahead.
func (h *Host) aheadLocked() int {
	if h.reads.n == 0 {
		return len(h.rx.buf)
	}
	return h.nextOnly(DataLen)
}
