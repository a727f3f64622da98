package iwarp

import (
	"runtime/debug"

	"softiser/internal/memfault"
	"softiser/rdma/internal/mem"
	"softiser/rdma/internal/verbs"
	"softiser/rdma/internal/wire"
)

type destKind uint8

const (
	destScrap  destKind = iota // dropped
	destRegion                 // memory behind an STag
	destRecv                   // receive buffer
	destTerm                   // Terminate message
)

// rxDest is where the payload of the FPDU in progress goes.
type rxDest struct {
	kind destKind
	reg  *mem.Region
	gen  uint64     // of the region: it may have been aimed elsewhere under the same STag
	off  uint64     // of the next byte, in the region or the buffer
	cur  mem.Cursor // position in the pieces; for a region valid under its lock only
}

// setRegion aims d at offset off of r.
// Preconditions: r is held, or the pieces of r cannot change.
func (d *rxDest) setRegion(r *mem.Region, off uint64) {
	*d = rxDest{kind: destRegion, reg: r, gen: r.Gen(), off: off}
	d.cur.Set(r.Pieces())
	d.cur.Skip(int(off))
	d.cur.Detach()
}

// lockDest gives access to the memory of f.dst until it is unlocked; false when that has been
// revoked or is to be left alone: the payload is dropped then.
func (f *fpdu) lockDest() bool {
	d := &f.dst
	switch d.kind {
	case destRecv:
		return true
	case destRegion:
		d.reg.Hold()
		ok, revoked := d.reg.Placeable(d.gen)
		if ok {
			d.cur.Attach(d.reg.Pieces())
			return true
		}
		d.reg.Release()
		if revoked {
			f.fail(wire.CauseSTag, "memory was invalidated while the peer was writing to it")
		}
		d.kind = destScrap
	}
	return false
}

func (d *rxDest) unlock() {
	if d.kind == destRegion {
		d.cur.Detach()
		d.reg.Release()
	}
}

// place places p, which lies in the read-ahead buffer.
func (x *receiver) place(p []byte) {
	x.left -= len(p)
	x.sum(p)
	if x.dst.kind == destTerm {
		x.term.n += copy(x.term.b[x.term.n:], p)
		return
	}
	if !x.lockDest() {
		return
	}
	ok := mem.CopyTo(&x.dst.cur, p)
	x.dst.off += uint64(len(p))
	x.dst.unlock()
	if !ok {
		x.placeFault()
		return
	}
	x.stats.Copied += uint64(len(p))
	if x.ctrl.Tagged() {
		x.stats.CopiedTagged += uint64(len(p))
	}
	x.in.pattern.since += len(p)
}

// crcOver continues crc over n bytes from c, which have just come there, and moves c behind them.
func crcOver(crc uint32, c *mem.Cursor, n int) (_ uint32, ok bool) {
	defer memfault.Guard(debug.SetPanicOnFault(true), &ok)
	for n > 0 {
		p := c.Next(n)
		crc = wire.CRCWarm(crc, p)
		n -= len(p)
	}
	return crc, true
}

// placeFault is called when the destination cannot be touched: the rest of the
// FPDU is dropped, and whoever lent the memory gets to know.
func (x *receiver) placeFault() {
	qp := x.qp
	d := x.dst
	x.dst = rxDest{kind: destScrap}
	x.stats.Faults++
	switch d.kind {
	case destRecv:
		x.recv.status = verbs.StatusLocalFault
	case destRegion:
		told, shared := d.reg.Faulted(d.gen)
		switch {
		case x.op == wire.ReadResponse:
			// The Read fails alone; later segments are dropped.
			qp.Mu.Lock()
			if o := qp.reads.oldestLocked(); o != nil {
				o.e.Status = verbs.StatusLocalFault
			}
			qp.Mu.Unlock()
			d.reg.Discard()
		case told && shared:
			// A plain memory region has no owner that is told of a fault, so the connection ends.
			x.fail(wire.CauseDDPLocal, "the memory that the peer writes to cannot be touched")
		}
	}
}
