package iwarp

import (
	"encoding/binary"

	"softiser/internal/resident"
	"softiser/rdma/internal/mem"
	"softiser/rdma/internal/wire"
)

// One readv can take many payloads, each to its place, and what lies between them
// (trailer, Send, header, …) to the buffer:
//
//	stream   … trailer header | payload | trailer Send header | payload | …
//	readv    [ buffer, lead  ] [ cut 0 ] [    buffer, gap    ] [ cut 1 ]
//
// The parser runs over the buffer and finds at each cut that the payload is in
// place. How the places are known beforehand: rx_peek.go looks, rx_guess.go guesses.
//
// The regions are locked from before the call until it is known what it brought.
// Nothing waits meanwhile but, for 5 ms at most, the call itself where Go has one processor
// and nobody else runs (sockio.InCall.Flags): they may be invalidated by anyone at any time,
// who waits as long for the lock. A cut
// keeps the CRC of its bytes; the memory is not looked at again.

// maxCuts is how many payloads one call takes.
const maxCuts = 40

// rxCut is a place in the read-ahead buffer where the stream goes on elsewhere.
type rxCut struct {
	reg   *mem.Region // locked; nil when it is known what has come
	off   uint64      // in the region
	size  int         // bytes aimed there
	gap   int         // and at the buffer behind it
	pos   int         // in the buffer, behind the header
	n     int         // bytes that have come
	crc   uint32      // of the header and these, when
	sum   int         // it covers as many
	fault bool        // they could not be touched
	going bool        // the FPDU goes on whose header has been parsed
	whole *mem.Region // verified: all of one RDMA Write to it, which the machine need not look at again
}

// rxCuts belongs to the receive goroutine.
type rxCuts struct {
	all   *[maxCuts]rxCut // of the room
	aimed int             // in the last call
	lead  int             // bytes aimed at the buffer in front of the first one
	n     int             // of these, have bytes and are right
	i     int             // next to be consumed
	off   bool            // not in the next call: memory could not be touched
}

// place puts cur where c stands in its region.
func (c *rxCut) place(cur *mem.Cursor) {
	cur.Set(c.reg.Pieces())
	cur.Skip(int(c.off))
}

// aimCuts appends lead and cuts to the pieces of the call. ram: those of the cuts are
// memory that is always resident, as scratch memory is (rdma.AccessScratch).
func (in *intake) aimCuts() (ram bool) {
	k := &in.cuts
	ram = true
	at := in.w + k.lead
	if k.lead > 0 {
		in.put(in.buf[in.w:at])
	}
	var cur mem.Cursor
	for i := range k.all[:k.aimed] {
		c := &k.all[i]
		scratch := c.reg.Access()&mem.Scratch != 0
		c.place(&cur)
		for n := c.size; n > 0; {
			p := cur.Next(n)
			in.put(p)
			ram = ram && (scratch || resident.Holds(p))
			n -= len(p)
		}
		if c.gap > 0 {
			in.put(in.buf[at : at+c.gap])
			at += c.gap
		}
	}
	return ram
}

// splitCuts distributes the n bytes that the call brought.
func (in *intake) splitCuts(n int) {
	k := &in.cuts
	take := func(want int) int {
		got := max(min(n, want), 0)
		n -= got
		return got
	}
	in.w += take(k.lead)
	k.n = 0
	for i := range k.all[:k.aimed] {
		c := &k.all[i]
		c.pos = in.w
		if c.n = take(c.size); c.n == 0 {
			break
		}
		k.n++
		in.w += take(c.gap)
	}
}

// sumCut computes the CRC of what has come for c; its header, if it has
// not been parsed, starts at p in the buffer.
func (in *intake) sumCut(c *rxCut, p int) {
	x := in.rx
	if !x.crcOn || c.sum == c.n {
		return
	}
	var cur mem.Cursor
	var ok bool
	c.place(&cur)
	from := x.crc
	if !c.going {
		from = wire.CRC(0, in.buf[p:c.pos])
	}
	c.crc, ok = crcOver(from, &cur, c.n)
	c.fault = !ok
}

// releaseCuts unlocks the regions.
func (in *intake) releaseCuts() {
	k := &in.cuts
	for i := range k.all[:k.aimed] {
		k.all[i].reg.Release()
		k.all[i].reg = nil
	}
}

// consumeCut takes the payload that is in place already.
func (in *intake) consumeCut() {
	x := in.rx
	c := &in.cuts.all[in.cuts.i]
	in.cuts.i++
	x.left -= c.n
	x.crc = c.crc
	x.dst.off += uint64(c.n)
	x.stats.Direct += uint64(c.n)
	if c.fault {
		x.crcOver = true
		x.placeFault()
	}
	if x.left > 0 && x.dst.kind == destRegion && x.lockDest() {
		x.dst.cur.Skip(c.n)
		x.dst.unlock()
	}
}

// distrust has the machine look at the Write to r that is still to be consumed, if there is one: the
// peer has invalidated r in front of it.
func (in *intake) distrust(r *mem.Region) {
	k := &in.cuts
	for i := k.i; i < k.n; i++ {
		if c := &k.all[i]; c.whole == r {
			c.whole = nil
		}
	}
}

// inOrder reports whether the FPDU at the front of b puts bytes into memory when
// it is parsed: a payload behind it must not be placed before that, since the later
// one of two RDMA Writes to the same memory is to remain.
func inOrder(b []byte) bool {
	ulen := int(binary.BigEndian.Uint16(b))
	c := wire.Control(binary.BigEndian.Uint16(b[wire.LenField:]))
	return c.Tagged() && ulen > wire.TaggedLen || c.Op() == wire.AtomicReq
}

// toHeader is where in the buffer the next FPDU begins.
func (in *intake) toHeader() int { return in.r + in.rx.fpdu.toNext() }
