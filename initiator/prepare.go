package initiator

import (
	"fmt"
	"time"

	"softiser/blockdev"
	"softiser/internal/spc"
)

// geometry is what a LUN's commands depend on. It is immutable; a resize or a
// refused WRITE SAME makes a new one.
type geometry struct {
	info      blockdev.Info
	maxIO     int64 // longest READ or WRITE, bytes
	maxUnmap  int64 // longest UNMAP range, bytes; 0: no UNMAP
	maxSame   int64 // longest WRITE SAME, bytes; 0: not supported, zeroes are written
	maxVerify int64 // longest VERIFY, bytes
	maxCAW    int64 // longest COMPARE AND WRITE, bytes; 0: not supported
	sameUnmap bool  // WRITE SAME may deallocate, and deallocated blocks read as zeroes
	fua       bool  // WRITE and COMPARE AND WRITE have FUA
	trimSame  bool  // Discard is WRITE SAME with UNMAP, for want of UNMAP
}

// prepare checks req and computes what its commands need. A request that is invalid, or has
// nothing to do, ends here: done is true, and Err is set (nil in the latter case).
func (l *LUN) prepare(req *Request) (r *request, done bool) {
	r = stateOf(req)
	r.lun, r.sess, r.next = l, nil, nil
	r.issued, r.parts, r.cancel, r.state, r.ctl, r.once, r.flush = 0, 0, nil, reqIdle, false, false, flushNone
	r.redone, r.joined = 0, 0
	r.Err, r.Residual, r.Status, r.Sent = nil, 0, 0, false
	g := l.geo.Load()
	r.geo = g
	op := rowOf(r.Op)
	if op == nil {
		r.Err = fmt.Errorf("%w: operation %d", ErrInvalid, r.Op)
		return r, true
	}
	info := &g.info
	if op.changes && info.ReadOnly {
		r.Err = blockdev.ErrReadOnly
		return r, true
	}
	if r.total = r.Len; op.data {
		r.total = r.DataLen()
	}
	if op.span != nil {
		n, err := op.span(r, g)
		if err == nil {
			err = info.Check(r.Off, n)
		}
		if r.Err = err; err != nil || n == 0 {
			return r, true
		}
		if r.FUA && info.WriteCache && op.bare(g) {
			r.flush = flushAfter
		}
	}
	if op.begin != nil {
		if r.Err = op.begin(l, r, g); r.Err != nil {
			return r, true
		}
	}
	if op.single {
		r.single()
	}
	return r, false
}

// single makes r a request of one command.
func (r *request) single() { r.total = 1 }

// carve makes the next command of r in slot t.
func (r *request) carve(t *task, c *conn) {
	op := rowOf(r.Op)
	rest := r.total - r.issued
	limit := rest
	if op.limit != nil {
		limit = op.limit(r.geo, c)
	}
	t.req, t.lun = r, r.lun.wire
	t.off, t.n = r.issued, min(rest, limit) // for the flush after the last write, rest and t.n are 0
	t.inLen, t.outLen, t.ahs = 0, 0, nil
	r.issued += t.n
	t.segs = t.segs[:0]
	if r.flush == flushNow {
		t.cdbLen = uint8(len(spc.AppendSyncCache(t.cdb[:0], 0, 0, false)))
	} else {
		p := part{bs: int64(r.geo.info.BlockSize)}
		if p.bs > 0 {
			p.lba, p.blocks = uint64((r.Off+t.off)/p.bs), uint32(t.n/p.bs)
		}
		op.build(r, t, p)
	}
	t.bufs.In, t.bufs.Out = nil, nil
	if t.inLen > 0 {
		t.bufs.In = t.segs
	} else if t.outLen > 0 {
		t.bufs.Out = t.segs
	}
}

// idempotent reports whether the command has the same result if it is carried out twice: only
// such a command is sent again when it is not known whether the target carried it out. Raw
// CDBs of callers (once) never are; the session's own ones are, as they only read.
func (r *request) idempotent() bool {
	return r.flush == flushNow || rowOf(r.Op).repeatable && !r.once
}

// zeroes is what zeroing commands send. It is never written to.
var zeroes [64 << 10]byte

// zeroSegs is how many times zeroes stands in one WRITE of zeroes.
const zeroSegs = 16

// Limits of commands where the target states none.
const (
	defaultMaxSame   = 1 << 30 // bytes; a target may take long over it
	defaultMaxUnmap  = 1 << 30
	defaultMaxVerify = 16 << 20
	maxBackoff       = time.Second
)
