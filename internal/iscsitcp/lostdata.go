package iscsitcp

import (
	"time"

	"softiser/internal/iscsi"
)

// Recovery of Data-Outs at error recovery level 1 and above (RFC 7143 §7.8, §7.9):
// what is missing of a sequence is asked for with an R2T of its own.
//
//	R2T 0: 0-64K       Data-Out 0 ✓  1 ✗ (digest)  2 ✓  (lost)  4 ✓ F
//	                        │         └─ Reject, hole    └─ hole
//	R2T 1: 16K-32K  ◀───────┘
//	R2T 2: 48K-64K  ◀── as far as MaxOutstandingR2T allows

// maxHoles bounds how often data of one transfer is asked for again.
const maxHoles = 64

// skip compares a Data-Out with its sequence. Numbers that were left out are
// a hole. It reports whether the PDU is an old one, to be dropped. at is where the
// data belongs, within the transfer.
func (rec *recovery) skip(q *r2t, dataSN, at uint32) (old bool) {
	if iscsi.SerialLess(dataSN, q.dataSN) {
		return true
	}
	have := q.off + q.got
	if dataSN == q.dataSN || at <= have || at-q.off > q.n {
		return false // nothing is missing before it, or it is an error
	}
	rec.lose(q.g, have, at-have)
	q.got = at - q.off
	q.dataSN = dataSN
	return false
}

// lose marks a range of g as lost.
func (rec *recovery) lose(g *get, off, n uint32) {
	if n == 0 {
		return
	}
	g.lost = append(g.lost, hole{off, n})
	if g.tries++; g.tries > maxHoles && g.x.Err == nil {
		g.x.Err = iscsi.ErrShortData
	}
}

// watch starts the timer for Data-Outs that are due.
func (rec *recovery) watch() {
	if rec.late == nil && !rec.c.gets.running.Empty() {
		rec.late = time.AfterFunc(rec.c.cfg.SequenceTimeout, rec.lookForLate)
	}
}

// lookForLate asks again for what has not come within the time-out (sequence
// reception time-out, RFC 7143 §7.9). Over a slow network that of an R2T begins once data of those before it has come:
// what is asked for again then waits behind it once more, and what comes meanwhile is thrown away.
func (rec *recovery) lookForLate() {
	c := rec.c
	c.mu.Lock()
	rec.late = nil
	if c.st != iscsi.ConnFull {
		c.mu.Unlock()
		return
	}
	for _, r := range c.gets.r2ts {
		if r.g != nil && r.g == c.placing {
			c.gets.move(r.order)
		}
	}
	for _, r := range c.gets.r2ts {
		g := r.g
		if g == nil || c.placing == g {
			continue
		}
		if c.gets.waits(r) {
			r.idle = false
			continue
		}
		if !r.idle {
			r.idle = true
			continue
		}
		if r.got == 0 {
			g.stale = append(g.stale, *r)
		}
		rec.lose(g, r.off+r.got, r.n-r.got)
		c.gets.close(r)
		if x := g.x; x.Err != nil {
			c.gets.remove(g)
			c.tx.done(x)
			continue
		}
		c.pumpLocked(g.itt)
	}
	c.gets.moved = 0
	rec.watch()
	c.mu.Unlock()
	c.Push()
}

// dataOutEnded takes note of the end of a solicited Data-Out with n bytes, which count as
// received. What was damaged is rejected and asked for again, and what was left out is
// (RFC 7143 §7.3).
func (rec *recovery) dataOutEnded(q *r2t, n uint32, good, final bool) {
	if !good {
		rec.lose(q.g, q.off+q.got-n, n)
	}
	if final && q.got < q.n {
		rec.lose(q.g, q.off+q.got, q.n-q.got)
	}
}

// tosses takes over a PDU with a damaged header. Its length cannot be trusted, so that
// the connection ends (RFC 7143 §7.7), unless the header that would follow proves by its
// own digest that the length was right: then the PDU is what was lost.
func (rec *recovery) tosses(r *receiver) bool {
	rec.c.mu.Lock()
	most := int(rec.c.params.MaxRecvDataSegmentLength)
	rec.c.mu.Unlock()
	if r.astray || r.bhs.DataLen() > most {
		return false
	}
	r.toss, r.astray = true, true
	r.begin()
	return true
}
