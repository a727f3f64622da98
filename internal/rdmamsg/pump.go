package rdmamsg

import (
	"errors"
	"fmt"
	"sync/atomic"

	"softiser/rdma"
)

// InlineLen is how long a message may be that needs no buffer.
const InlineLen = 208

// maxRead is the most that one RDMA Read asks for, so that the peer's answer to
// one command does not hold up all others.
const maxRead = 1 << 20

// Errors of Puts and Gets, besides those of the end of the connection.
var (
	// ErrAborted: Abort was called before everything had moved.
	ErrAborted = errors.New("rdmamsg: aborted")
	// ErrFault: the memory cannot be touched.
	ErrFault = errors.New("rdmamsg: the memory cannot be accessed")
)

// Owner is the connection that a Pump works for. It is called with its lock held.
type Owner interface {
	// Moved ends a Put or Get: user is what it was queued with.
	Moved(user any, err error)
	// Sent ends a message that had a Tag: it was sent or dropped.
	Sent(tag int)
	// Fail ends the connection: a work request could not be posted.
	Fail(err error)
}

// Pump is the work of one connection that is on its way into the send queue, or in it.
//
//	Send, Put ──▶ pend ──┐ Pump: while the send queue has room
//	                     ├──────────────────────────────────▶ queue pair ──▶ Reap
//	Get ────────▶ reads ─┘ and, of Reads, the ORD
//
// Messages and Puts leave in the order of the calls. Of those that leave together only some ask
// for a completion (FlagSignaled): it says that what was posted before has ended, too. The last
// one always asks. The owner's lock guards it.
type Pump struct {
	// ORD is how many Reads the peer serves at once; set before the first Get.
	ORD int
	// Hold keeps back every message that is not marked First, and what is behind it.
	Hold bool
	// Fetched counts the bytes that Gets have brought.
	Fetched atomic.Uint64

	d     *Device
	qp    *rdma.QP
	owner Owner
	pend  opList // messages and Puts, in order
	reads opList // Gets that wait for a slot of the ORD
	msgs  int    // messages in pend
	nread int    // Reads outstanding
	out   int    // work requests outstanding
	ops   opPool
	gets  []*get // running, by slot
	freeG []int
	sgl   [MaxSGE]rdma.SGE
	to    rdma.Posting // the send queue, while Pump has it
	wr    rdma.SendWR  // the request that is being posted
	err   error        // why posting has failed: the connection is to end
	quiet quietOps
}

// Init makes p the pump of a link.
func (p *Pump) Init(l *Link, o Owner) { p.d, p.qp, p.owner = l.d, l.QP, o }

// Message is a Send that is being built.
type Message struct {
	Buf    []byte // the message; Pump.Message gave it the room that was asked for
	Tag    int    // what Owner.Sent is told when it has gone; 0: nothing
	Inv    uint32 // STag to invalidate at the peer, with HasInv
	HasInv bool
	First  bool // it goes in spite of Pump.Hold

	op     *op // that it is part of
	inline [InlineLen]byte
}

// Move names a Put or Get for Abort. The zero Move is none.
type Move int

// put frees an op; nothing is kept alive by it.
func (p *Pump) put(o *op) {
	if cap(o.Buf) > len(o.inline) {
		p.d.sends.put(o.Buf)
	}
	o.Buf, o.sgl[0], o.Tag, o.HasInv, o.First = nil, rdma.SGE{}, 0, false, false
	o.user, o.g, o.segs, o.aborted, o.quiet, o.err = nil, nil, nil, false, false, nil
	p.ops.put(o)
}

// Message returns an empty message with room for n bytes, which must be sent.
func (p *Pump) Message(n int) *Message {
	m := &p.ops.get(opSend).Message
	m.Buf = m.inline[:0]
	if n > len(m.inline) {
		m.Buf = p.d.sends.get(n)
	}
	return m
}

// Send queues m.
func (p *Pump) Send(m *Message) {
	p.pend.put(m.op)
	p.msgs++
}

// Waiting is how many messages wait for the send queue: the peer cannot have read them.
func (p *Pump) Waiting() int { return p.msgs }

// Put queues a Write of segs, n > 0 bytes, to memory of the peer. It owns segs until
// Owner.Moved.
func (p *Pump) Put(user any, segs [][]byte, n uint32, to rdma.RemoteAddr) Move {
	o := p.ops.get(opWrite)
	o.user, o.segs, o.off, o.left, o.wrs, o.remote = user, segs, 0, n, 0, to
	p.pend.put(o)
	return Move(o.id + 1)
}

// Idle reports whether no message or Put waits for the send queue.
func (p *Pump) Idle() bool { return p.pend.head == nil }

// Sending reports whether something other than Reads waits, or is in the send queue.
func (p *Pump) Sending() bool { return !p.Idle() || p.out > p.nread }

// Resting reports whether nothing waits, and nothing is in the send queue.
func (p *Pump) Resting() bool { return p.Idle() && p.reads.head == nil && p.out == 0 }

// take fills sgl with the next pieces of o, at most limit bytes.
func (p *Pump) take(o *op, limit uint32) (sgl []rdma.SGE, n uint32) {
	for len(o.segs) > 0 && len(sgl) < MaxSGE && n < limit {
		s := o.segs[0][o.off:]
		if k := limit - n; uint32(len(s)) > k {
			s = s[:k]
			o.off += int(k)
		} else {
			o.segs, o.off = o.segs[1:], 0
		}
		if len(s) == 0 {
			continue
		}
		p.sgl[len(sgl)] = rdma.SGE{Mem: s, LKey: p.d.key(s)}
		sgl = p.sgl[:len(sgl)+1]
		n += uint32(len(s))
	}
	return sgl, n
}

// Pump moves work into the send queue until that is full; Reads only if reads says so.
// It does not transmit.
func (p *Pump) Pump(reads bool) {
	if p.pend.head == nil && p.reads.head == nil {
		return
	}
	p.to = rdma.Post(p.qp) // once for all of them
	p.pumpSends()
	if reads {
		p.pumpReads()
	}
	p.to.End()
	if err := p.err; err != nil {
		p.err = nil
		p.owner.Fail(err)
	}
}

// pumpSends moves messages and Puts into the send queue, which Pump has.
func (p *Pump) pumpSends() {
	for p.pend.head != nil && p.out < SendDepth {
		o := p.pend.head
		if p.Hold && !o.First {
			break
		}
		if o.kind == opSend {
			o.quiet = p.mayBeQuiet(o, len(o.Buf))
			if !p.post(o) {
				return
			}
			p.pend.pop()
			p.msgs--
			if o.quiet {
				p.quiet.put(o)
			}
			continue
		}
		if o.aborted {
			if o.err == nil {
				o.err = ErrAborted
			}
			p.pend.pop()
			if o.left = 0; o.wrs == 0 { // else the last request ends it: they use the memory
				p.moved(o)
			}
			continue
		}
		o.quiet = len(o.segs) <= MaxSGE && o.wrs == 0 && p.mayBeQuiet(o, int(o.left)) // of one request only
		if !p.write(o) {
			return
		}
		if o.left == 0 {
			p.pend.pop()
		}
		if o.quiet {
			p.quiet.put(o)
		}
	}
}

// mayBeQuiet reports whether o, the first in pend and of n bytes, needs no completion of its
// own: what is behind it is posted at once as well.
func (p *Pump) mayBeQuiet(o *op, n int) bool {
	return o.next != nil && !o.next.aborted && !p.Hold && p.out+1 < SendDepth && o.covers.head == nil &&
		p.quiet.room(n)
}

// flags are those of a request of o, of n bytes. If it asks for a completion, that is the
// completion of the quiet ones before it, too.
func (p *Pump) flags(o *op, n int) rdma.SendFlags {
	if o.quiet {
		p.quiet.count(n)
		return 0
	}
	if p.quiet.n > 0 {
		o.covers = p.quiet.take()
	}
	return rdma.FlagSignaled
}

// post gives a message to the queue pair.
func (p *Pump) post(o *op) bool {
	o.sgl[0] = rdma.SGE{Mem: o.Buf, LKey: p.d.pd.LocalDMAKey()}
	wr := &p.wr
	wr.ID, wr.Op, wr.Flags, wr.SGL = o.id, rdma.OpSend, p.flags(o, len(o.Buf)), o.sgl[:]
	if o.HasInv {
		wr.Op, wr.InvSTag = rdma.OpSendInv, o.Inv
	}
	return p.enqueue()
}

// write gives the next request of a Put to the queue pair.
func (p *Pump) write(o *op) bool {
	segs, off := o.segs, o.off
	sgl, n := p.take(o, o.left)
	wr := &p.wr
	wr.ID, wr.Op, wr.Flags, wr.SGL, wr.Remote = o.id, rdma.OpWrite, p.flags(o, int(n)), sgl, o.remote
	if !p.enqueue() {
		o.segs, o.off = segs, off
		return false
	}
	o.wrs++
	o.left -= n
	o.remote.TO += uint64(n)
	return true
}

// enqueue posts p.wr. False means that nothing more can be posted now. What a kind of request does
// not use of it is of no meaning.
func (p *Pump) enqueue() bool {
	err := p.to.Enqueue(&p.wr)
	if err == nil {
		p.out++
		return true
	}
	if !errors.Is(err, rdma.ErrQueueFull) {
		p.err = err
	}
	return false
}

// Reap takes in completions of the send queue from cq, as many as fit wcs; more says that
// there may be others. Under the owner's lock, whatever others have polled has been
// taken in: at the end of the connection, an empty cq means that all of them have.
func (p *Pump) Reap(cq *rdma.CQ, wcs []rdma.WC) (more bool) {
	n := cq.Poll(wcs)
	for i := range wcs[:n] {
		p.reap(&wcs[i])
	}
	return n == len(wcs)
}

func (p *Pump) reap(wc *rdma.WC) {
	o := p.ops.at(int(wc.ID))
	if o.kind == opWrite && wc.Status != rdma.StatusSuccess && o.err == nil {
		o.err = wcError(wc)
	}
	if o.quiet {
		return // it has failed, and ends with the request that covers it
	}
	p.endAll(&o.covers)
	p.ended(o, wc)
}

// endAll ends requests that have no completion of their own.
func (p *Pump) endAll(l *opList) {
	for l.head != nil {
		p.ended(l.pop(), nil)
	}
}

// ended enters that a request of o has ended; wc is its completion, which a Read always has.
func (p *Pump) ended(o *op, wc *rdma.WC) {
	p.out--
	switch o.kind {
	case opSend:
		p.sent(o)
	case opWrite:
		if o.wrs--; o.wrs == 0 && o.left == 0 {
			p.moved(o)
		}
	case opRead:
		p.nread--
		p.readDone(o, wc)
	}
}

// sent frees a message that has been sent or dropped.
func (p *Pump) sent(o *op) {
	tag := o.Tag
	p.put(o)
	if tag > 0 {
		p.owner.Sent(tag)
	}
}

// moved ends a Put.
func (p *Pump) moved(o *op) {
	user, err := o.user, o.err
	p.put(o)
	p.owner.Moved(user, err)
}

// wcError turns a failed completion into the error of a Put or Get.
func wcError(wc *rdma.WC) error {
	switch wc.Status {
	case rdma.StatusLocalFault:
		return ErrFault
	case rdma.StatusDiscarded:
		return ErrAborted
	}
	return fmt.Errorf("%s ended with %s", wc.Opcode, wc.Status)
}

// Abort ends a Put or Get early, if m still is that of user. A Get lets go of its
// memory before Abort returns, and is over when the answers of the peer have arrived:
// one to a dead STag would end the connection. A Put stops where it is.
func (p *Pump) Abort(m Move, user any) {
	switch {
	case m > 0:
		if o := p.ops.at(int(m - 1)); o != nil && o.kind == opWrite && o.user == user {
			o.aborted = true
		}
	case m < 0 && int(-m) <= len(p.gets):
		if g := p.gets[-m-1]; g.user == user {
			p.abortGet(g)
		}
	}
}

// Purge ends, at the end of the connection, what has not got into the send queue. What
// has was flushed, and is to be reaped before; nobody may pump in between.
func (p *Pump) Purge(err error) {
	p.endAll(&p.quiet.opList) // where the post of what was to cover them has failed
	for p.pend.head != nil {
		o := p.pend.pop()
		p.endAll(&o.covers)
		if o.kind == opSend {
			p.msgs--
			p.sent(o)
			continue
		}
		if o.err == nil {
			o.err = err
		}
		p.moved(o)
	}
	for p.reads.head != nil {
		g := p.reads.head.g
		if g.err == nil {
			g.err = err
		}
		p.dropRest(g)
		if len(g.running) == 0 {
			p.endGet(g)
		}
	}
}
