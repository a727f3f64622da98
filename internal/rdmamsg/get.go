package rdmamsg

import "softiser/rdma"

// get is one running Get. A get without user is free.
type get struct {
	user    any
	err     error
	op      *op   // what still waits in Pump.reads
	running []*op // Reads outstanding
	slot    int
}

// Get queues Reads of n > 0 bytes of the peer's memory into segs. It owns segs until
// Owner.Moved.
func (p *Pump) Get(user any, segs [][]byte, n uint32, from rdma.RemoteAddr) Move {
	var g *get
	if k := len(p.freeG); k > 0 {
		g = p.gets[p.freeG[k-1]]
		p.freeG = p.freeG[:k-1]
	} else {
		g = &get{slot: len(p.gets)}
		p.gets = append(p.gets, g)
	}
	g.user = user
	o := p.ops.get(opRead)
	o.g, o.segs, o.off, o.left, o.remote = g, segs, 0, n, from
	g.op = o
	p.reads.put(o)
	return Move(-g.slot - 1)
}

// pumpReads moves Reads into the send queue, which Pump has, as far as the peer serves them.
func (p *Pump) pumpReads() {
	for p.reads.head != nil && p.out < SendDepth && p.nread < p.ORD {
		o := p.reads.head
		sgl, n := p.take(o, min(o.left, maxRead))
		r := p.ops.get(opRead) // one per work request, so that each can be discarded
		r.g, r.n = o.g, n
		wr := &p.wr
		wr.ID, wr.Op, wr.Flags, wr.SGL, wr.Remote = r.id, rdma.OpRead, rdma.FlagSignaled, sgl, o.remote
		if !p.enqueue() {
			p.put(r)
			return
		}
		p.nread++
		o.g.running = append(o.g.running, r)
		o.left -= n
		o.remote.TO += uint64(n)
		if o.left == 0 {
			o.g.op = nil
			p.put(p.reads.pop())
		}
	}
}

// readDone ends one Read.
func (p *Pump) readDone(o *op, wc *rdma.WC) {
	g := o.g
	for i, r := range g.running {
		if r == o {
			last := len(g.running) - 1
			g.running[i] = g.running[last]
			g.running[last] = nil
			g.running = g.running[:last]
			break
		}
	}
	if wc.Status == rdma.StatusSuccess {
		p.Fetched.Add(uint64(o.n))
	} else if g.err == nil {
		g.err = wcError(wc)
	}
	p.put(o)
	if g.err != nil && g.op != nil {
		p.dropRest(g)
	}
	if len(g.running) == 0 && g.op == nil {
		p.endGet(g)
	}
}

func (p *Pump) endGet(g *get) {
	user, err := g.user, g.err
	g.user, g.err = nil, nil
	p.freeG = append(p.freeG, g.slot)
	p.owner.Moved(user, err)
}

// dropRest takes what has not begun of a Get off the queue.
func (p *Pump) dropRest(g *get) {
	var rest opList
	for p.reads.head != nil {
		if o := p.reads.pop(); o != g.op {
			rest.put(o)
		} else {
			p.put(o)
		}
	}
	p.reads, g.op = rest, nil
}

// abortGet is Abort for a Get.
func (p *Pump) abortGet(g *get) {
	if g.err == nil {
		g.err = ErrAborted
	}
	if g.op != nil {
		p.dropRest(g)
	}
	for _, r := range g.running {
		p.qp.DiscardRead(r.id)
	}
	if len(g.running) == 0 {
		p.endGet(g)
	}
}
