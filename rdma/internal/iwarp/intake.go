package iwarp

import (
	"encoding/binary"

	"softiser/internal/resident"
	"softiser/internal/sockio"
	"softiser/rdma/internal/mem"
	"softiser/rdma/internal/wire"
)

// intake takes bytes from the socket for the receiver, and chooses how: ahead into its
// buffer, long payloads straight to where they belong, one or many in one call (see
// rx_cut.go). Its choices never change what the machine sees, only where it finds it.
type intake struct {
	rx *receiver

	room       *rxRoom // lent, what follows included; nil while it rests, see rooms.go
	buf        []byte  // read-ahead: buf[r:w] has come and is not consumed
	r, w       int
	vec        []sockio.Vec
	cuts       rxCuts
	pattern    rxPattern
	more       bool   // the last call has brought all that it could: more is likely to be there
	ahead      bool   // buf may hold what the machine has not seen: it runs before the next read
	deep       bool   // the room is a deep one
	tight      bool   // the guess under way ends where the buffer has no more room
	deepen     bool   // all of a tight guess has come
	shortFPDUs bool   // the peer's FPDUs are too short for direct placement
	expect     int    // > 0: a direct payload is likely to be next
	scrap      []byte // where dropped payload goes
}

// read takes what is there: straight into the destination when much payload is still to come,
// and into the next ones when they are known, else into the buffer.
func (in *intake) read() (int, error) {
	if in.ahead {
		in.ahead = false
		return in.w - in.r, nil
	}
	n, err := in.call()
	in.rx.stats.Bytes += uint64(max(n, 0))
	return n, err
}

// again makes the next read bring what has been read already.
func (in *intake) again() { in.cuts.n, in.cuts.i, in.ahead = 0, 0, in.r < in.w }

// preload makes b what has been read, before the first read.
func (in *intake) preload(b []byte) {
	if len(b) == 0 {
		return
	}
	in.deep = len(b) > rxBuf
	in.take()
	in.w = copy(in.buf, b)
	in.again()
}

// call is that system call, or two where the stream is looked at first.
func (in *intake) call() (int, error) {
	x, qp := in.rx, in.rx.qp
	x.stats.RecvCalls++
	in.take()
	in.vec = in.vec[:0]
	in.cuts.aimed, in.cuts.n, in.cuts.i = 0, 0, 0
	in.more = false
	if in.deepen && !in.deep {
		in.goDeep()
	}
	in.deepen = false
	have := in.buf[in.r:in.w] // part of a header or of a trailer
	in.r, in.w = 0, copy(in.buf, have)
	if in.w == 0 && x.stage == rxPayload && x.paylen >= directMin && x.left > 0 {
		if look := in.peekPast(); look > 0 {
			return in.peek(look)
		}
		return in.direct()
	}
	if !x.busy() && in.guess(in.lead()) {
		n, err := qp.conn.Readv(in.vec, true)
		clear(in.vec)
		if e := in.settle(n); e != nil {
			err = e
		}
		return n, err
	}
	limit := len(in.buf) - in.w
	switch look := in.peekLen(); {
	case in.cuts.off:
		in.cuts.off = false
		limit = in.want()
	case look > 0:
		return in.peek(look)
	}
	n, err := qp.conn.Read(in.buf[in.w : in.w+limit])
	in.w += max(n, 0)
	return n, err
}

// want is how much to read so that no long payload comes along: to the next
// header, or to the end of a short FPDU and the header behind it.
func (in *intake) want() int {
	x := in.rx
	const next = wire.LenField + wire.TaggedLen
	have := in.w - in.r
	if x.stage != rxHeader {
		return x.toNext() + next - have
	}
	if have < 4 {
		return next - have
	}
	ulen := int(binary.BigEndian.Uint16(in.buf[in.r:]))
	hl := wire.LenField + wire.Ops[wire.Control(binary.BigEndian.Uint16(in.buf[in.r+2:])).Op()].Hdr
	if ulen+wire.LenField-hl >= directMin {
		return hl - have
	}
	return wire.FPDULen(ulen) + next - have
}

// direct reads payload straight to its destination, and what follows it into
// the buffer, which is empty.
func (in *intake) direct() (int, error) {
	x, qp := in.rx, in.rx.qp
	if !x.lockDest() {
		n, err := qp.conn.Read(in.scrapBuf(x.left))
		if n > 0 {
			x.sum(in.scrap[:n])
			x.left -= n
		}
		return n, err
	}
	c := x.dst.cur
	aim := 0
	soon := x.dst.kind == destRecv || x.dst.reg.Access()&mem.Scratch != 0
	known := !soon
	for aim < x.left && len(in.vec) < cap(in.vec)-1 {
		p := c.Next(x.left - aim)
		in.put(p)
		known = known && resident.Holds(p)
		aim += len(p)
	}
	guess, tail := false, 0
	if aim == x.left {
		if x.ctrl.Last() {
			guess = in.guess(in.pattern.gap)
		}
		if !guess {
			tail = in.tail()
			in.put(in.buf[:tail])
		}
	}
	in.cuts.off = false
	n, err := qp.conn.Readv(in.vec, soon || known)
	clear(in.vec)
	in.more = tail > 0 && n == aim+tail
	placed := max(min(n, aim), 0)
	ok := true
	if placed > 0 {
		if !x.crcOver {
			x.crc, ok = crcOver(x.crc, &x.dst.cur, placed)
		} else {
			x.dst.cur.Skip(placed)
		}
		x.dst.off += uint64(placed)
		x.left -= placed
		x.stats.Direct += uint64(placed)
		if n > placed && !guess {
			in.w = n - placed
		}
	}
	x.dst.unlock()
	if guess {
		if e := in.settle(n - placed); e != nil {
			err = e
		}
	}
	if !ok {
		x.crcOver = true
		x.placeFault()
	}
	return n, err
}

// scrapBuf is memory for payload that is dropped.
func (in *intake) scrapBuf(n int) []byte {
	if in.scrap == nil {
		in.scrap = make([]byte, 16<<10)
	}
	return in.scrap[:min(n, len(in.scrap))]
}

// tail is how much to read behind a direct payload that no guess follows: what lay
// between the last two, or, where nothing may be copied, the trailer and a header;
// everything when the next one will be copied.
func (in *intake) tail() int {
	x, qp := in.rx, in.rx.qp
	if in.peekLen() == 0 {
		return len(in.buf)
	}
	t := wire.Pad(x.ulen) + segGap
	if x.ctrl.Last() && in.pattern.gap > t && in.pattern.pause == 0 {
		if _, sinks, _ := qp.lent.lent(); sinks == 0 {
			return in.pattern.gap
		}
	}
	return t
}

// learn is called at the end of a long payload.
func (in *intake) learn() {
	x := in.rx
	switch {
	case x.op == wire.ReadResponse:
		in.expect = 32 // the next Read may be sent while the socket is being read
	case x.paylen >= lentLong:
		in.expect = 4
	}
	in.pattern.learn(x.ctrl.Last())
}

// put appends p to the pieces of the call.
func (in *intake) put(p []byte) {
	in.vec = in.vec[:len(in.vec)+1]
	sockio.Set(&in.vec[len(in.vec)-1], p)
}
