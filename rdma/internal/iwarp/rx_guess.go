package iwarp

import (
	"encoding/binary"
	"errors"

	"softiser/rdma/internal/mem"
	"softiser/rdma/internal/wire"
)

// Guessing. A stream of answers repeats a pattern, and windows are filled in the
// order in which they were lent, unless the peer answers out of order. So one
// readv is aimed at the windows in that order, with the learned gap between them,
// and it is verified before anything else happens: the header in front of each
// payload must name exactly that window from its start. If one does not, everything
// from that payload on is put together in the buffer in the order of the stream, as
// if it had been read ahead, and guessing pauses.
//
// Only AccessScratch windows are guessed into, in which nothing has been placed:
// after a wrong guess they hold stray bytes until their own data comes.

const (
	pauseMax = 1 << 12 // payloads without guessing after many wrong guesses
	// Between two segments of a message: the trailer and a header.
	segGap = wire.CRCLen + wire.LenField + wire.TaggedLen
)

// rxPattern is what the receiver has learned of the stream.
type rxPattern struct {
	gap   int  // bytes from the end of one long payload to the next
	since int  // counted since the last one
	ended bool // the last long payload ended its message
	seg   int  // payload of the peer's FPDUs that were not the last of their message
	pause int  // long payloads until the next guess
	back  int  // length of the last pause
}

// measure is called where a long payload starts, learn where it ends.
func (p *rxPattern) measure() {
	if p.ended {
		if p.gap = p.since; p.gap > gapMax {
			p.gap = 0
		}
	}
}

func (p *rxPattern) learn(last bool) {
	p.since, p.ended = 0, last
	p.pause = max(p.pause-1, 0)
}

// lead is how many bytes come before the next long payload if the pattern holds;
// 0 when that is not known.
func (in *intake) lead() int {
	if !in.pattern.ended || in.pattern.gap == 0 {
		return 0
	}
	return max(in.pattern.gap-in.pattern.since-(in.w-in.r), 0)
}

// guess chooses windows for a readv that takes lead bytes into the buffer before
// them, locks them, and appends it all to in.vec. False: there is nothing to guess.
func (in *intake) guess(lead int) bool {
	qp := in.rx.qp
	k := &in.cuts
	l := &qp.lent
	if lead <= 0 || in.shortFPDUs || in.pattern.pause > 0 || k.off {
		return false
	}
	in.tight = false
	room := len(in.buf) - in.w - lead
	vecs := cap(in.vec) - len(in.vec) - 1
	l.mu.Lock()
	for r := l.head; r != nil && k.aimed < maxCuts; r = r.Link.Next {
		if !r.TryHold() {
			break
		}
		n, gap, more := in.fit(int(min(r.Size(), uint64(len(in.buf)))), room)
		in.tight = n == 0 && k.aimed > 1
		if n == 0 || len(r.Pieces())+1 > vecs {
			r.Release()
			break
		}
		k.all[k.aimed] = rxCut{reg: r, size: n, gap: gap}
		k.aimed++
		vecs -= len(r.Pieces()) + 1
		room -= n + gap
		if !more {
			break
		}
	}
	l.mu.Unlock()
	if k.aimed == 0 {
		return false
	}
	k.lead = lead
	in.aimCuts()
	return true
}

// fit is how much of a window of size bytes can be read when the buffer has room
// for room bytes, should the guess be wrong, and how much behind it. more: the
// next window may follow.
func (in *intake) fit(size, room int) (n, gap int, more bool) {
	p := &in.pattern
	switch {
	case p.seg > 0 && size > p.seg && p.seg+segGap <= room:
		return p.seg, segGap, false // the message goes on in another FPDU
	case (p.seg == 0 || size <= p.seg) && size+p.gap <= room:
		return size, p.gap, true
	case in.cuts.aimed == 0 && room >= directMin:
		return min(size, room), 0, false // it does not fit: aim at its beginning
	}
	return 0, 0, false
}

var errGuess = errors.New("rdma: memory that the peer was writing to has vanished")

// settle verifies what a guess brought, n bytes behind the certain part of the
// call, and unlocks the windows.
func (in *intake) settle(n int) (err error) {
	qp := in.rx.qp
	k := &in.cuts
	in.splitCuts(n)
	right := in.verify()
	in.deepen = in.tight && right == k.aimed
	switch {
	case right < k.n:
		err = in.linearise(right)
		k.n = right
		in.pattern.back = min(2*in.pattern.back+1, pauseMax)
		in.pattern.pause = in.pattern.back
	case right > 0:
		in.pattern.back /= 2
	}
	if right > 0 {
		l := &qp.lent
		l.mu.Lock()
		for i := range k.all[:right] {
			l.dropLocked(k.all[i].reg)
		}
		l.mu.Unlock()
	}
	in.releaseCuts()
	return err
}

// verify is how many of the guesses were right, from the front. It walks over the
// headers in the buffer, from where the machine stands.
func (in *intake) verify() int {
	k := &in.cuts
	p := in.toHeader()
	for i := range k.all[:k.n] {
		c := &k.all[i]
		ulen, ctrl, ok := in.header(&p, c)
		if !ok {
			return i
		}
		pay := ulen - wire.TaggedLen
		follows := in.w > c.pos || i+1 < k.n
		if pay < c.n || pay > c.n && follows {
			return i
		}
		in.sumCut(c, p)
		if pay == c.n && !c.fault && ctrl|wire.CtrlLast == wholeWrite {
			c.whole = c.reg
		}
		p = c.pos + wire.Pad(ulen) + wire.CRCLen
	}
	return k.n
}

// wholeWrite is the control word of an RDMA Write with nothing unusual about it, for consumeWhole.
var wholeWrite = wire.Ctrl(wire.Write, true)

// header moves *p from FPDU to FPDU up to the one whose payload begins at c. It
// returns its length and control word if that is an RDMA Write to the start of the window.
func (in *intake) header(p *int, c *rxCut) (ulen int, ctrl wire.Control, ok bool) {
	const hl = wire.LenField + wire.TaggedLen
	for *p+hl < c.pos {
		if inOrder(in.buf[*p:]) {
			return 0, 0, false
		}
		*p += wire.FPDULen(int(binary.BigEndian.Uint16(in.buf[*p:])))
	}
	if *p+hl != c.pos {
		return 0, 0, false
	}
	h := in.buf[*p:c.pos]
	var t wire.Tagged
	t.Parse(h[wire.LenField:])
	ulen = int(binary.BigEndian.Uint16(h))
	return ulen, t.Ctrl, ulen > wire.TaggedLen && t.Ctrl.Tagged() && t.Ctrl.Op() == wire.Write && c.reg.Names(t.STag, t.TO)
}

// linearise puts what lies behind the cuts from number from on together in the
// buffer, in the order of the stream.
func (in *intake) linearise(from int) error {
	cuts := in.cuts.all[from:in.cuts.n]
	end, to := in.w, in.w
	for i := range cuts {
		to += cuts[i].n
	}
	in.w = to
	for i := len(cuts) - 1; i >= 0; i-- {
		c := &cuts[i]
		to -= end - c.pos
		copy(in.buf[to:], in.buf[c.pos:end])
		end = c.pos
		to -= c.n
		var cur mem.Cursor
		c.place(&cur)
		if !mem.CopyFrom(in.buf[to:to+c.n], &cur) {
			return errGuess
		}
	}
	return nil
}
