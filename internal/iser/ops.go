package iser

import (
	"errors"
	"fmt"

	"softiser/internal/iscsi"
	"softiser/rdma"
)

// opKind is what an op does.
type opKind uint8

const (
	opSend opKind = iota + 1
	opWrite
	opRead
)

// op is work that is on its way into the send queue, or in it. An op of a
// transfer may take several work requests, because a request names at most maxSGE
// pieces.
type op struct {
	next *op
	kind opKind
	id   uint64 // in the table of ops

	// opSend: the message, header included. inline holds what every control PDU
	// but logins and unsolicited data needs.
	msg    []byte
	inline [HeaderLen + iscsi.BHSLen + linuxControlData + 4]byte
	sgl    [1]rdma.SGE
	cost   int    // what it counts for in Conn.unsent; 0: it is no answer
	inv    uint32 // STag to invalidate
	hasInv bool

	// opWrite, opRead: the rest of the transfer.
	x      *iscsi.Transfer
	g      *get
	segs   [][]byte // what has not been queued yet
	off    int      // into segs[0]
	remote rdma.RemoteAddr
	left   uint32
	wrs    int    // opWrite: requests outstanding
	n      uint32 // bytes of this request (opRead)
}

type opList struct{ head, tail *op }

func (l *opList) put(o *op) {
	o.next = nil
	if l.tail == nil {
		l.head = o
	} else {
		l.tail.next = o
	}
	l.tail = o
}

func (l *opList) pop() *op {
	o := l.head
	if l.head = o.next; l.head == nil {
		l.tail = nil
	}
	o.next = nil
	return o
}

// opPool gives every op an ID for its completion.
type opPool struct {
	all  []*op
	free *op
}

func (p *opPool) get(k opKind) *op {
	o := p.free
	if o == nil {
		o = &op{id: uint64(len(p.all))}
		p.all = append(p.all, o)
	} else {
		p.free = o.next
	}
	o.kind, o.next = k, nil
	return o
}

func (p *opPool) put(o *op) {
	if cap(o.msg) > len(o.inline) {
		putBuffer(o.msg)
	}
	o.msg, o.sgl[0], o.hasInv = nil, rdma.SGE{}, false
	o.x, o.g, o.segs = nil, nil, nil
	o.next, p.free = p.free, o
}

// take fills sgl with the next pieces of o, at most limit bytes.
func (c *Conn) take(o *op, limit uint32) (sgl []rdma.SGE, n uint32) {
	for len(o.segs) > 0 && len(sgl) < maxSGE && n < limit {
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
		c.sgl[len(sgl)] = rdma.SGE{Mem: s, LKey: c.d.key(s)}
		sgl = c.sgl[:len(sgl)+1]
		n += uint32(len(s))
	}
	return sgl, n
}

// maxRead is the most that one RDMA Read asks for, so that the peer's answer to
// one command does not hold up all others.
const maxRead = 1 << 20

// pumpLocked moves work into the send queue until that is full. It does not
// transmit.
func (c *Conn) pumpLocked() {
	for c.pend.head != nil && c.out < sendDepth {
		o := c.pend.head
		if c.hello == helloWait && c.role == iscsi.RoleInitiator && o.msg[0]&typeMask == typeControl {
			break // nothing overtakes the Hello exchange
		}
		if o.kind == opSend {
			o.sgl[0] = rdma.SGE{Mem: o.msg, LKey: c.d.pd.LocalDMAKey()}
			wr := rdma.SendWR{ID: o.id, Op: rdma.OpSend, Flags: rdma.FlagSignaled, SGL: o.sgl[:]}
			if o.hasInv {
				wr.Op, wr.InvSTag = rdma.OpSendInv, o.inv
			}
			if !c.enqueueLocked(&wr) {
				return
			}
			c.pend.pop()
			continue
		}
		if o.x.Own.Aborted {
			if o.x.Err == nil {
				o.x.Err = iscsi.ErrAborted
			}
			c.pend.pop()
			if o.left = 0; o.wrs == 0 { // else the last request ends it: they use the memory
				c.doneQ.put(o.x)
				c.ops.put(o)
			}
			continue
		}
		segs, off := o.segs, o.off
		sgl, n := c.take(o, o.left)
		wr := rdma.SendWR{ID: o.id, Op: rdma.OpWrite, Flags: rdma.FlagSignaled, SGL: sgl, Remote: o.remote}
		if !c.enqueueLocked(&wr) {
			o.segs, o.off = segs, off
			return
		}
		o.wrs++
		o.left -= n
		o.remote.TO += uint64(n)
		if o.left == 0 {
			c.pend.pop()
		}
	}
	for c.st == stateFull && c.reads.head != nil && c.out < sendDepth && c.nread < c.info.ORD {
		o := c.reads.head
		sgl, n := c.take(o, min(o.left, maxRead))
		r := c.ops.get(opRead) // one per work request, so that each can be discarded
		r.g, r.n = o.g, n
		wr := rdma.SendWR{ID: r.id, Op: rdma.OpRead, Flags: rdma.FlagSignaled, SGL: sgl, Remote: o.remote}
		if !c.enqueueLocked(&wr) {
			c.ops.put(r)
			return
		}
		c.nread++
		o.g.running = append(o.g.running, r)
		o.left -= n
		o.remote.TO += uint64(n)
		if o.left == 0 {
			o.g.op = nil
			c.ops.put(c.reads.pop())
		}
	}
	if c.st == stateClosing {
		c.closeLocked()
	}
}

// enqueueLocked posts one work request. False means that nothing more can be
// posted now.
func (c *Conn) enqueueLocked(wr *rdma.SendWR) bool {
	err := c.qp.Enqueue(wr)
	switch {
	case err == nil:
		c.out++
		return true
	case errors.Is(err, rdma.ErrQueueFull):
	default:
		c.failLocked(fmt.Errorf("iser: %w", err))
	}
	return false
}

// sendHandler is the handler of the send completion queue: what was sent or read
// is complete.
func (c *Conn) sendHandler(cq *rdma.CQ) { c.reapSends(cq, c.sendWC[:]) }

func (c *Conn) reapSends(cq *rdma.CQ, wcs []rdma.WC) {
	for {
		n := cq.Poll(wcs)
		if n == 0 {
			return
		}
		c.mu.Lock()
		for i := range wcs[:n] {
			c.sentLocked(&wcs[i])
		}
		c.mu.Unlock()
		c.Push()
	}
}

// sentLocked handles one send completion.
func (c *Conn) sentLocked(wc *rdma.WC) {
	o := c.ops.all[wc.ID]
	c.out--
	switch o.kind {
	case opSend:
		c.sentMessageLocked(o)
	case opWrite:
		if wc.Status != rdma.StatusSuccess && o.x.Err == nil {
			o.x.Err = c.wcError(wc)
		}
		if o.wrs--; o.wrs == 0 && o.left == 0 {
			c.doneQ.put(o.x)
			c.ops.put(o)
		}
	case opRead:
		c.nread--
		c.doneReadLocked(o, wc)
	}
}

// opCost is the memory of a queued message that fits its op, roughly.
const opCost = 512

// owedLocked counts a message that the peer has asked for.
func (c *Conn) owedLocked(o *op) {
	o.cost = opCost
	if len(o.msg) > len(o.inline) {
		o.cost += sendBufLen
	}
	c.unsent.Add(o.cost)
	if c.unsent.Many() {
		c.behind.Store(true)
	}
}

// sentMessageLocked frees a message that has been sent or dropped.
func (c *Conn) sentMessageLocked(o *op) {
	if o.cost > 0 {
		c.unsent.Sub(o.cost)
		o.cost = 0
		if c.behind.Load() && c.unsent.Room() {
			c.behind.Store(false)
			c.goOnLocked()
		}
	}
	c.ops.put(o)
}

// goOnLocked lets awaitReader look again.
func (c *Conn) goOnLocked() {
	select {
	case c.room <- struct{}{}:
	default:
	}
}

// wcError turns a failed completion into the error of a transfer.
func (c *Conn) wcError(wc *rdma.WC) error {
	switch wc.Status {
	case rdma.StatusLocalFault:
		return iscsi.ErrMemoryFault
	case rdma.StatusDiscarded:
		return iscsi.ErrAborted
	}
	return fmt.Errorf("iser: %s ended with %s", wc.Opcode, wc.Status)
}
