package iscsitcp

import "softiser/internal/iscsi"

// Recovery of Data-Outs at error recovery level 1 and above (RFC 7143 §7.5, §7.8):
// what is missing of a sequence is asked for with an R2T of its own.
//
//	R2T 0: 0-64K       Data-Out 0 ✓  1 ✗ (digest)  2 ✓  (lost)  4 ✓ F
//	                        │         └─ Reject, hole    └─ hole
//	R2T 1: 16K-32K  ◀───────┘
//	R2T 2: 48K-64K  ◀── as far as MaxOutstandingR2T allows

// maxHoles bounds how often data of one transfer is asked for again.
const maxHoles = 64

// skipLocked compares a Data-Out with its sequence. Numbers that were left out are
// a hole. It reports whether the PDU is an old one, to be dropped. at is where the
// data belongs, within the transfer.
func (c *Conn) skipLocked(q *r2t, dataSN, at uint32) (old bool) {
	if iscsi.SerialLess(dataSN, q.dataSN) {
		return true
	}
	have := q.off + q.got
	if dataSN == q.dataSN || at <= have || at-q.off > q.n {
		return false // in order, or wrong
	}
	c.loseLocked(q.g, have, at-have)
	q.got = at - q.off
	q.dataSN = dataSN
	return false
}

// loseLocked marks a range of g as lost.
func (c *Conn) loseLocked(g *get, off, n uint32) {
	if n == 0 {
		return
	}
	g.lost = append(g.lost, hole{off, n})
	if g.tries++; g.tries > maxHoles && g.x.Err == nil {
		g.x.Err = iscsi.ErrShortData
	}
}

// watchLocked starts the timer for Data-Outs that are due.
func (c *Conn) watchLocked() {
	if c.keep != nil && c.gets.first != nil {
		restart(&c.late, c.cfg.SequenceTimeout, c.lookForLate)
	}
}

// lookForLate asks again for what has not come within the time-out (sequence
// reception time-out, RFC 7143 §7.5).
func (c *Conn) lookForLate() {
	c.mu.Lock()
	c.late = nil
	if c.st != stateFull {
		c.mu.Unlock()
		return
	}
	for _, r := range c.gets.r2ts {
		g := r.g
		if g == nil || c.placing == g {
			continue
		}
		if !r.idle {
			r.idle = true
			continue
		}
		if r.got == 0 {
			g.stale = append(g.stale, *r)
		}
		c.loseLocked(g, r.off+r.got, r.n-r.got)
		c.gets.close(r)
		if x := g.x; x.Err != nil {
			c.gets.remove(g)
			c.tx.done(x)
			continue
		}
		c.pumpLocked(g.itt)
	}
	c.watchLocked()
	c.mu.Unlock()
	c.Push()
}

// recovers reports whether the connection survives what was damaged on its way.
// keep does not change once PDUs carry digests.
func (c *Conn) recovers() bool { return c.keep != nil }

// badHeader handles a header digest error. The length of the PDU cannot be trusted,
// so that the connection ends (RFC 7143 §7.7), unless recovery has been negotiated
// and the header that would follow proves by its own digest that the length was
// right: then the PDU is what was lost.
func (c *Conn) badHeader() error {
	r := &c.rx
	c.stats.damaged.Add(1)
	c.mu.Lock()
	most := int(c.params.MaxRecvDataSegmentLength)
	c.mu.Unlock()
	if !c.recovers() || r.astray || r.bhs.DataLen() > most {
		return errHeaderDigest
	}
	r.toss, r.astray = true, true
	r.phase, r.left = rxData, r.bhs.DataLen()
	r.owner, r.tag, r.in, r.dst, r.whole, r.direct = nil, nil, nil, view{}, view{}, false
	return nil
}
