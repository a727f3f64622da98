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

// plan makes cuts for the long tagged payloads in the buffer, up to end, and for the
// rest of the one in progress. What follows a cut will lie directly behind its
// header. False: that rest is to be read alone.
func (in *intake) plan(end int) bool {
	const hl = wire.LenField + wire.TaggedLen
	x := in.rx
	k := &in.cuts
	from := in.w             // of what goes to the buffer next
	to := end                // and its end
	vecs := cap(in.vec) - 2  // pieces left
	between := func(n int) { // n bytes go to the buffer
		if k.aimed == 0 {
			k.lead = n
		} else {
			k.all[k.aimed-1].gap = n
		}
	}
	k.lead = 0
	if x.busy() && x.paylen >= directMin {
		if !in.aimRest(end) {
			return false
		}
		c := &k.all[0]
		var cur mem.Cursor
		c.place(&cur)
		fit, pieces := cur.Fit(c.size, vecs-1)
		vecs -= pieces + 1
		from = fit
		switch {
		case fit < c.size:
			c.size = fit
			return true
		case from >= end:
			from, to = 0, wire.Pad(x.ulen)+segGap
		}
	}
	for p := in.toHeader(); p+hl <= end; {
		h := in.buf[p : p+hl]
		ulen := int(binary.BigEndian.Uint16(h))
		next := p + wire.FPDULen(ulen)
		var t wire.Tagged
		t.Parse(h[wire.LenField:])
		if !inOrder(h) {
			p = next
			continue
		}
		if x.busy() && k.aimed == 0 || !t.Ctrl.Tagged() || ulen-wire.TaggedLen < directMin {
			to = min(next, end) // this FPDU is the last of this call
			break
		}
		c := rxCut{size: ulen - wire.TaggedLen}
		if x.crcOn && next <= end {
			// All of it is here: nothing is placed before the CRC is known to be good.
			c.crc, c.sum = wire.CRC(0, in.buf[p:p+hl+c.size]), c.size
			if wire.CRC(c.crc, in.buf[p+hl+c.size:next-wire.CRCLen]) != wire.GetCRC(in.buf[next-wire.CRCLen:next]) {
				to = next // let the parser find the bad CRC and report it
				break
			}
		}
		if k.aimed == maxCuts || vecs < 2 {
			to = p
			break
		}
		if !in.aimCut(&c, &t) {
			to = min(next, end)
			break
		}
		between(p + hl - from)
		var cur mem.Cursor
		c.place(&cur)
		fit, pieces := cur.Fit(c.size, vecs-1)
		vecs -= pieces + 1
		short := fit < c.size
		c.size = fit
		k.all[k.aimed] = c
		k.aimed++
		from = p + hl + fit
		switch {
		case short:
			return true // scattered into very many pieces
		case from >= end:
			from, to = 0, wire.Pad(ulen)+segGap
		}
		p = next
	}
	between(to - from)
	return true
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
