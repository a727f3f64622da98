package iscsitcp

import (
	"unsafe"

	"softiser/internal/iscsi"
	"softiser/internal/segs"
	"softiser/internal/sockio"
)

// guess is how an initiator takes the data of many short reads by one system call, each
// straight to its buffer: the call is aimed at what is most likely to come, which is the
// data of the reads in the order in which they were sent.
//
//	... rest of the PDU under way │ BHS │ data of read 1 │ BHS │ data of read 2 │ ... │ read-ahead
//
// What has come is believed only as far as its headers say that it is where it belongs.
// From the first that says something else, everything is moved to the read-ahead. Then the
// memory is let go of, and only then the headers are parsed, like any others. The buffers
// that were written to by mistake belong to reads that were outstanding, which this peer
// may write to, and whose data was yet to come. A target that answers in another order is
// not guessed at for a while.
//
// Owned by the receive goroutine.
type guess struct {
	r     *receiver
	list  []guessed
	size  int  // bytes that the list covers; as far into the read-ahead lies what comes behind
	score int  // not negative: guesses are right
	most  int  // guesses to make, by how many came true of late
	resp  bool // each read is followed by a SCSI Response
}

// guessed is a Data-In that is expected, with what follows it.
type guessed struct {
	k    *task
	off  uint32
	data []byte // where its data goes
	head iscsi.BHS
	resp iscsi.BHS
	then bool // resp is expected
}

const (
	maxGuesses   = 64
	maxPieces    = sockio.MaxVec - 3*maxGuesses - 1 // of the PDU under way, in the same call
	maxGuessRead = 32 << 10                         // longer data has system calls of its own
	guessAhead   = 144 << 10
	goodGuess    = 1
	badGuess     = 8
	bestScore    = 32
	worstScore   = -64
)

func (g *guess) init(r *receiver) { g.r, g.score, g.most = r, bestScore, 1 }

// foresee appends where the PDUs go that are expected behind the one under way. false:
// there is nothing to expect, and v is as it was.
func (g *guess) foresee(v []sockio.Vec) ([]sockio.Vec, bool) {
	r := g.r
	c := r.c
	switch {
	case c.role != iscsi.RoleInitiator || r.r != r.w:
		return v, false
	case r.phase == rxTail || r.phase == rxData && (r.tailLen() > 0 || r.owner == nil || r.dst.Len() < r.left || r.dst.Pieces() > maxPieces):
		return v, false
	case g.score < 0:
		g.score++
		return v, false
	}
	c.mu.Lock()
	tail := g.choose()
	c.mu.Unlock()
	if len(g.list) == 0 {
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

// choose fills the list, keeps the memory of its tasks where it is until settle, and
// returns how much to read behind it. The caller holds Conn.mu.
func (g *guess) choose() (tail int) {
	r := g.r
	c := r.c
	g.list, g.size = g.list[:0], 0
	if hd, dd := c.digestsLocked(); c.st != iscsi.ConnFull || hd || dd {
		return 0
	}
	if !c.params.DataPDUInOrder || !c.params.DataSequenceInOrder {
		return 0 // what lies behind the data that has come may be data that has come
	}
	k := c.tasks.reads.First()
	if k == nil || g.resp && k.placed == k.inLen {
		return 0 // its response is next
	}
	if len(r.buf) < guessAhead+readAhead {
		r.buf = make([]byte, guessAhead+readAhead)
		r.r, r.w = 0, 0
	}
	for room := guessAhead; k != nil && len(g.list) < g.most; k = k.node.Next() {
		n := k.inLen - min(k.placed, k.inLen)
		if n == 0 || k.fault {
			continue
		}
		e := guessed{k: k, off: k.placed, then: g.resp}
		if n > maxGuessRead || n > c.params.MaxRecvDataSegmentLength || n%4 != 0 || len(k.bufs.In) > 1 {
			return iscsi.BHSLen
		}
		e.data = k.bufs.In[0][e.off:]
		if e.size() > room || g.overlaps(e.data) {
			return iscsi.BHSLen
		}
		room -= e.size()
		g.size += e.size()
		k.aimed = true
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

// settle lets go of the memory of the list: whoever takes it away waits for that.
func (g *guess) settle() {
	c := g.r.c
	c.mu.Lock()
	for i := range g.list {
		g.list[i].k.aimed = false
	}
	c.cond.Broadcast()
	c.mu.Unlock()
}

// foreseen handles n bytes that have come behind the PDU that was under way, which is
// complete if there are any.
func (g *guess) foreseen(n int) error {
	r := g.r
	right, resps, lo, hi := g.check(n)
	g.settle()
	if err := r.handle(); err != nil { // the end of the PDU that was under way
		return err
	}
	for i := range right {
		e := &g.list[i]
		if err := g.parse(&e.head); err != nil {
			return err
		}
		n -= iscsi.BHSLen
		if r.dst.Len() > 0 && (r.owner != e.k || unsafe.SliceData(r.dst.Next()) != unsafe.SliceData(e.data)) {
			return protocolError("Data-In for task tag %#x, which has been used anew", e.head.ITT())
		}
		k := min(n, len(e.data))
		n -= k
		r.took(k)
		if r.left > 0 {
			break
		}
		if err := r.handle(); err != nil {
			return err
		}
		if i < resps {
			if err := g.parse(&e.resp); err != nil {
				return err
			}
			n -= iscsi.BHSLen
		}
	}
	r.r, r.w = lo, hi
	return nil
}

// parse handles a header of the list as if it had been read ahead.
func (g *guess) parse(b *iscsi.BHS) error {
	r := g.r
	r.r, r.w = 0, copy(r.buf, b[:])
	return r.handle()
}

// check finds out how much of n bytes is as it was expected: how many of the Data-Ins, and
// how many of them with their response, as far as they have come. What is not lies at
// r.buf[lo:hi] afterwards.
func (g *guess) check(n int) (right, resps, lo, hi int) {
	all := n
	for i := range g.list {
		e := &g.list[i]
		if n == 0 {
			g.most = max(2*i, 1)
			return right, resps, 0, 0
		}
		if n < iscsi.BHSLen || !e.right() {
			lo, hi = g.move(i, 0, n)
			g.wrong(n >= iscsi.BHSLen)
			return right, resps, lo, hi
		}
		n -= iscsi.BHSLen
		right++
		if n < len(e.data) {
			return right, resps, 0, 0
		}
		n -= len(e.data)
		g.score = min(g.score+goodGuess, bestScore)
		g.resp = e.head.DataIn().Final() && !e.head.DataIn().HasStatus()
		if !e.then || n == 0 {
			continue
		}
		if n < iscsi.BHSLen || !isAnswer(&e.resp) {
			lo, hi = g.move(i, iscsi.BHSLen+len(e.data), n)
			g.wrong(n >= iscsi.BHSLen)
			return right, resps, lo, hi
		}
		n -= iscsi.BHSLen
		resps++
	}
	g.most = min(2*g.most, maxGuesses)
	if all > g.size {
		lo, hi = g.size, all
	}
	return right, resps, lo, hi
}

func (g *guess) wrong(yes bool) {
	if yes {
		g.score = max(g.score-badGuess, worstScore)
	}
}

// right reports whether the header that has come is one of data that is where it was put.
func (e *guessed) right() bool {
	h := &e.head
	return h.Opcode() == iscsi.OpDataIn && h.AHSLen() == 0 && h.DataLen() == len(e.data) && h.ITT() == e.k.itt && h.DataIn().Offset() == e.off
}

// isAnswer reports whether a PDU that is as long as its header answers a command.
func isAnswer(b *iscsi.BHS) bool {
	return b.Opcode() == iscsi.OpSCSIResponse && b.AHSLen() == 0 && b.DataLen() == 0
}

// move moves n bytes to the read-ahead, which begin skip bytes into what was expected at
// i, and returns where they are. What lies there already, behind the list, stays.
func (g *guess) move(i, skip, n int) (lo, hi int) {
	at := skip
	for j := range i {
		at += g.list[j].size()
	}
	lo, hi = at, at+n
	end := min(hi, g.size)
	put := func(b []byte) {
		if skip >= len(b) {
			skip -= len(b)
			return
		}
		b = b[skip:]
		skip = 0
		if at < end {
			b = b[:min(len(b), end-at)]
			segs.Copy(g.r.buf[at:], b) // of memory that has gone nothing is left to be believed
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
	return lo, hi
}

func (e *guessed) size() int {
	n := iscsi.BHSLen + len(e.data)
	if e.then {
		n += iscsi.BHSLen
	}
	return n
}
