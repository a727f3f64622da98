package rdma

import (
	"encoding/binary"
	"errors"

	"softiser/rdma/internal/sock"
	"softiser/rdma/internal/wire"
)

// Guessing. A stream of answers repeats a pattern, and the windows are filled in
// the order in which they were lent, unless the peer answers out of order:
//
//	stream   … trailer Send header | payload | trailer Send header | payload | …
//	readv    [    buffer, gap     ] [window 1] [    buffer, gap   ] [window 2]
//
// So one readv takes many payloads, each to its place. What it brought is verified
// before anything else happens: the header in front of each payload must name
// exactly that window from its start. If one does not, everything from that
// payload on is put together in the buffer in the order of the stream, as if it
// had been read ahead, and guessing pauses.
//
// Only AccessScratch windows are guessed into, in which nothing has been placed:
// after a wrong guess they hold stray bytes until their own data comes. Their
// locks are held from the readv to the end of the verification, which waits for
// nothing, so a window may be invalidated at any time. What is verified keeps its
// CRC, and its memory is not looked at again.

const (
	maxCuts   = 30     // windows in one readv
	pauseMax  = 1 << 7 // payloads without guessing after many wrong guesses
	guessTail = wire.CRCLen + wire.LenField + wire.TaggedLen
)

// rxCut is a place in the read-ahead buffer where the stream goes on in a window.
type rxCut struct {
	pos   int // in the buffer, behind the header
	reg   *region
	stag  uint32
	size  int    // bytes aimed at the window
	gap   int    // and at the buffer, behind it
	n     int    // bytes in the window
	crc   uint32 // of the header and these
	fault bool   // they could not be touched
}

// rxGuess belongs to the receive goroutine.
type rxGuess struct {
	cuts  [maxCuts]rxCut
	aimed int  // in the last call
	n     int  // of these: right ones
	i     int  // next of them to be consumed
	lead  int  // bytes aimed at the buffer in front of the first one
	off   bool // not in the next call: a window could not be touched

	// Pattern, see rxState.gap.
	seg   int // payload of the peer's FPDUs that were not the last of their message
	pause int // payloads that are not to be guessed
	back  int // length of the last pause
}

// lead is how many bytes come before the next long payload if the pattern holds;
// 0 when that is not known. behind is what the call reads first.
func (x *rxState) lead() int {
	if !x.ended || x.gap == 0 {
		return 0
	}
	return max(x.gap-x.since-(x.w-x.r), 0)
}

// aim chooses windows for a readv that takes lead bytes into the buffer before
// them, locks them, and appends it all to x.vec. False: there is nothing to guess.
func (qp *QP) aim(lead int) bool {
	x := &qp.rx
	g := &x.guess
	if lead <= 0 || x.short || g.pause > 0 || g.off || qp.lent.open.Load() == 0 {
		return false
	}
	room := len(x.buf) - x.w - lead
	vecs := cap(x.vec) - len(x.vec) - 1
	l := &qp.lent
	l.mu.Lock()
	for r := l.head; r != nil && g.aimed < maxCuts; r = r.next {
		n, gap, more := x.fit(int(min(r.size, uint64(len(x.buf)))), room)
		if n == 0 || len(r.segs)+1 > vecs || !r.mu.TryRLock() {
			break
		}
		g.cuts[g.aimed] = rxCut{reg: r, stag: r.stag, size: n, gap: gap}
		g.aimed++
		vecs -= len(r.segs) + 1
		room -= n + gap
		if !more {
			break
		}
	}
	l.mu.Unlock()
	if g.aimed == 0 {
		return false
	}
	g.lead = lead
	at := x.w
	x.put(x.buf[at : at+lead])
	at += lead
	for i := range g.cuts[:g.aimed] {
		c := &g.cuts[i]
		var cur cursor
		cur.set(c.reg.segs)
		for n := c.size; n > 0; {
			p := cur.next(n)
			x.put(p)
			n -= len(p)
		}
		if c.gap > 0 {
			x.put(x.buf[at : at+c.gap])
			at += c.gap
		}
	}
	return true
}

// fit is how much of a window of size bytes can be read when the buffer has room
// for room bytes, should the guess be wrong, and how much behind it. more: the
// next window may follow.
func (x *rxState) fit(size, room int) (n, gap int, more bool) {
	seg := x.guess.seg
	switch {
	case seg > 0 && size > seg && seg+guessTail <= room:
		return seg, guessTail, false // the message goes on in another FPDU
	case (seg == 0 || size <= seg) && size+x.gap <= room:
		return size, x.gap, true
	case x.guess.aimed == 0 && room >= directMin:
		return min(size, room), 0, false // as much as there is room for
	}
	return 0, 0, false
}

// put appends p to the pieces of the call.
func (x *rxState) put(p []byte) {
	x.vec = x.vec[:len(x.vec)+1]
	sock.Set(&x.vec[len(x.vec)-1], p)
}

var errGuess = errors.New("rdma: memory that a peer was writing to has vanished")

// guessed makes the call that aim has prepared.
func (qp *QP) guessed() (int, error) {
	x := &qp.rx
	n, err := qp.conn.Readv(x.vec)
	clear(x.vec)
	if n > 0 {
		x.stats.Bytes += uint64(n)
	}
	return n, qp.land(n, err)
}

// land distributes the n bytes that a readv brought behind its certain part,
// verifies the guesses and unlocks their windows. err is that of the call, and is
// returned if there is no other.
func (qp *QP) land(n int, err error) error {
	x := &qp.rx
	g := &x.guess
	take := func(want int) int {
		k := max(min(n, want), 0)
		n -= k
		return k
	}
	x.w += take(g.lead)
	for i := range g.cuts[:g.aimed] {
		c := &g.cuts[i]
		c.pos = x.w
		if c.n = take(c.size); c.n > 0 {
			g.n++
			x.w += take(c.gap)
		}
	}
	right := x.verify()
	switch {
	case right < g.n:
		if e := x.linearise(right); e != nil {
			err = e
		}
		g.n = right
		g.back = min(2*g.back+1, pauseMax)
		g.pause = g.back
	case right > 0:
		g.back /= 2
	}
	l := &qp.lent
	if right > 0 {
		l.mu.Lock()
		for i := range g.cuts[:right] {
			l.dropLocked(g.cuts[i].reg)
		}
		l.mu.Unlock()
	}
	for i := range g.cuts[:g.aimed] {
		g.cuts[i].reg.mu.RUnlock()
		g.cuts[i].reg = nil
	}
	return err
}

// verify is how many of the guesses were right, from the front. It walks over the
// headers in the buffer, from where the machine stands.
func (x *rxState) verify() int {
	g := &x.guess
	p := x.r
	switch x.stage {
	case rxPayload:
		p += x.left + wire.Pad(x.ulen) + wire.CRCLen
	case rxTrailer:
		p += wire.Pad(x.ulen) + wire.CRCLen
	}
	for i := range g.cuts[:g.n] {
		c := &g.cuts[i]
		ulen, ok := x.header(&p, c)
		if !ok {
			return i
		}
		pay := ulen - wire.TaggedLen
		follows := i+1 < g.n || x.w > c.pos
		if pay < c.n || pay > c.n && follows {
			return i
		}
		if x.crcOn {
			var cur cursor
			cur.set(c.reg.segs)
			c.crc, ok = crcOver(wire.CRC(0, x.buf[p:c.pos]), &cur, c.n)
			c.fault = !ok
		}
		p = c.pos + wire.Pad(ulen) + wire.CRCLen
	}
	return g.n
}

// header moves *p from FPDU to FPDU up to the one whose payload begins at c. It
// returns its length if that is an RDMA Write to the start of the window.
func (x *rxState) header(p *int, c *rxCut) (ulen int, ok bool) {
	for *p+wire.LenField+wire.TaggedLen <= c.pos {
		h := x.buf[*p:c.pos]
		ulen = int(binary.BigEndian.Uint16(h))
		if len(h) > wire.LenField+wire.TaggedLen {
			*p += wire.FPDULen(ulen)
			continue
		}
		var t wire.Tagged
		t.Parse(h[wire.LenField:])
		return ulen, ulen > wire.TaggedLen && t.Ctrl.Tagged() && t.Ctrl.Op() == wire.Write && t.STag == c.stag && t.TO == c.reg.base
	}
	return 0, false
}

// linearise puts what lies behind the cuts from number from on together in the
// buffer, in the order of the stream.
func (x *rxState) linearise(from int) error {
	cuts := x.guess.cuts[from:x.guess.n]
	end, to := x.w, x.w
	for i := range cuts {
		to += cuts[i].n
	}
	x.w = to
	for i := len(cuts) - 1; i >= 0; i-- {
		c := &cuts[i]
		to -= copy(x.buf[to-(end-c.pos):], x.buf[c.pos:end])
		end = c.pos
		to -= c.n
		var cur cursor
		cur.set(c.reg.segs)
		if !copyFrom(x.buf[to:to+c.n], &cur) {
			return errGuess
		}
	}
	return nil
}

// consumeCut takes the payload that is in place already.
func (qp *QP) consumeCut() {
	x := &qp.rx
	c := &x.guess.cuts[x.guess.i]
	x.guess.i++
	x.left -= c.n
	x.crc = c.crc
	x.stats.Direct += uint64(c.n)
	x.dst.off += uint64(c.n)
	if c.fault {
		x.crcBad = true
		qp.placeFault()
	}
	if x.left > 0 && x.dst.kind == destRegion && qp.lockDest() {
		x.dst.cur.skip(c.n)
		x.dst.unlock()
	}
}
