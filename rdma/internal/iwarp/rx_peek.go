package iwarp

import (
	"encoding/binary"

	"softiser/rdma/internal/mem"
	"softiser/rdma/internal/wire"
)

// Peeking. Where a wrong guess must not leave a trace, or guesses fail, the stream
// is looked at first: MSG_PEEK brings a copy of what lies in the socket, the
// headers in it tell where everything belongs, and a readv takes it there. The
// kernel copies twice, and there are two calls for many payloads; nothing is copied
// in user space, whatever the order is.

const (
	peekFew = 2 << 10 // looked at when payloads are long: what lies before the next one
	pastMax = 8 << 10 // longest rest of a payload that is looked past
)

// peekLen is how much to look at, 0 when reading ahead is better: nothing has been
// lent, or the peer cuts messages into short FPDUs.
func (in *intake) peekLen() int {
	qp := in.rx.qp
	l := &qp.lent
	n, _, bytes := l.lent()
	switch {
	case in.shortFPDUs || n == 0 && in.expect == 0:
		return 0
	case n > 0 && bytes >= uint64(n)*lentLong:
		return peekFew
	}
	// Look at all there is: messages that are received in one call are answered in one, and a
	// peer that gets its answers one by one sends one by one.
	return len(in.buf) - in.w - 2*segGap // room for the tail
}

// peekPast is how much to look at where the short rest of a Read Response is next
// and another one is expected: the rest, what lies between, and the payload of the
// other one are read in one call then. 0: the rest is read alone.
func (in *intake) peekPast() int {
	x, qp := in.rx, in.rx.qp
	if x.left > pastMax || x.op != wire.ReadResponse || !x.ctrl.Last() || x.dst.kind != destRegion || in.cuts.off || in.shortFPDUs {
		return 0
	}
	if _, sinks, _ := qp.lent.lent(); sinks < 2 {
		return 0
	}
	look := in.peekLen()
	if look == peekFew {
		look += x.left
	}
	return look
}

// peek looks at the stream and reads what it has seen.
func (in *intake) peek(limit int) (int, error) {
	x, qp := in.rx, in.rx.qp
	n, err := qp.conn.Peek(in.buf[in.w : in.w+limit])
	if err != nil || n == 0 {
		return n, err
	}
	x.stats.RecvCalls++
	if !in.plan(in.w + n) {
		return in.direct()
	}
	ram := in.aimCuts()
	n, err = qp.conn.Readv(in.vec, ram)
	clear(in.vec)
	in.splitCuts(n)
	for i := range in.cuts.all[:in.cuts.n] {
		c := &in.cuts.all[i]
		in.sumCut(c, c.pos-wire.LenField-wire.TaggedLen)
	}
	in.releaseCuts()
	return n, err
}

// layout is a call that is being planned: where what has been seen, up to end, goes to.
type layout struct {
	in   *intake
	end  int
	vecs int // pieces left
	from int // of what goes to the buffer next
	to   int // and its end
}

// plan makes cuts for the long tagged payloads in the buffer, up to end, and for the
// rest of the one in progress. What follows a cut will lie directly behind its
// header. False: that rest is to be read alone.
func (in *intake) plan(end int) bool {
	x := in.rx
	in.cuts.lead = 0
	l := layout{in: in, end: end, vecs: cap(in.vec) - 2, from: in.w, to: end}
	if x.busy() && x.paylen >= directMin {
		if !in.aimRest(end) {
			return false
		}
		if !l.fit(&in.cuts.all[0], 0, x.ulen) {
			return true
		}
	}
	if l.walk() {
		l.between(l.to - l.from)
	}
	return true
}

// walk makes the cuts for the FPDUs whose headers are in the buffer, and finds where the
// call ends. False: it ends in a cut.
func (l *layout) walk() bool {
	const hl = wire.LenField + wire.TaggedLen
	in, x, k := l.in, l.in.rx, &l.in.cuts
	for p, next := in.toHeader(), 0; p+hl <= l.end; p = next {
		h := in.buf[p : p+hl]
		ulen := int(binary.BigEndian.Uint16(h))
		next = p + wire.FPDULen(ulen)
		if !inOrder(h) {
			continue
		}
		var t wire.Tagged
		t.Parse(h[wire.LenField:])
		c := rxCut{size: ulen - wire.TaggedLen}
		switch {
		case x.busy() && k.aimed == 0, !t.Ctrl.Tagged(), c.size < directMin, !l.sound(&c, p, next):
			l.to = min(next, l.end) // the parser is to see it: it is the last of this call
			return true
		case k.aimed == maxCuts, l.vecs < 2:
			l.to = p
			return true
		case !in.aimCut(&c, &t):
			l.to = min(next, l.end)
			return true
		}
		l.between(p + hl - l.from)
		k.all[k.aimed] = c
		k.aimed++
		if !l.fit(&k.all[k.aimed-1], p+hl, ulen) {
			return false
		}
	}
	return true
}

// sound reports whether the FPDU at [p:next], whose payload c is for, may be placed: if all of it is
// here, not before the CRC is known to be good.
func (l *layout) sound(c *rxCut, p, next int) bool {
	if !l.in.rx.crcOn || next > l.end {
		return true
	}
	buf, pay := l.in.buf, p+wire.LenField+wire.TaggedLen
	c.crc, c.sum = wire.CRC(0, buf[p:pay+c.size]), c.size
	return wire.CRC(c.crc, buf[pay+c.size:next-wire.CRCLen]) == wire.GetCRC(buf[next-wire.CRCLen:next])
}

// fit shortens c, whose payload begins at p of what has been seen and is part of an FPDU of ulen
// bytes, to what the pieces that are left can take. False: that is not all of it.
func (l *layout) fit(c *rxCut, p, ulen int) (all bool) {
	var cur mem.Cursor
	c.place(&cur)
	fit, pieces := cur.Fit(c.size, l.vecs-1)
	l.vecs -= pieces + 1
	if fit < c.size {
		c.size = fit // scattered into very many pieces
		return false
	}
	if l.from = p + fit; l.from >= l.end {
		l.from, l.to = 0, wire.Pad(ulen)+segGap
	}
	return true
}

// between sends n bytes to the buffer, behind the last cut.
func (l *layout) between(n int) {
	if k := &l.in.cuts; k.aimed == 0 {
		k.lead = n
	} else {
		k.all[k.aimed-1].gap = n
	}
}

// aimRest makes the rest of the payload in progress, which lies at the front of the
// buffer up to end, the first cut. False: the memory has been revoked, or the CRC
// is bad; who reads the rest alone finds out.
func (in *intake) aimRest(end int) bool {
	x := in.rx
	c := rxCut{reg: x.dst.reg, off: x.dst.off, size: x.left, going: true}
	tail := x.left + wire.Pad(x.ulen)
	if x.crcOn && tail+wire.CRCLen <= end {
		c.crc, c.sum = wire.CRC(x.crc, in.buf[:x.left]), x.left
		if wire.CRC(c.crc, in.buf[x.left:tail]) != wire.GetCRC(in.buf[tail:tail+wire.CRCLen]) {
			return false
		}
	}
	r := c.reg
	if !r.TryHold() {
		return false
	}
	if ok, _ := r.Placeable(x.dst.gen); !ok {
		r.Release()
		return false
	}
	in.cuts.all[0], in.cuts.aimed = c, 1
	return true
}

// aimCut locks the memory that t is for. False: it is not as it should be, or is
// being revoked.
func (in *intake) aimCut(c *rxCut, t *wire.Tagged) bool {
	qp := in.rx.qp
	var want mem.Access
	switch t.Ctrl.Op() {
	case wire.Write:
		want = mem.RemoteWrite
	case wire.ReadResponse:
		want = mem.Sink
	default:
		return false
	}
	r := qp.Dev.Table.Lookup(t.STag)
	if r == nil || !r.TryHold() {
		return false
	}
	off, f := r.Check(qp.PD, &qp.Mem, t.STag, t.TO, uint64(c.size), want)
	if f != mem.None || r.Discarding() {
		r.Release()
		return false
	}
	c.reg, c.off = r, off
	return true
}
