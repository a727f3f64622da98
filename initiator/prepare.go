package initiator

import (
	"fmt"
	"time"

	"softiser/blockdev"
	"softiser/internal/iscsi"
	"softiser/internal/scsi"
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

// prepare checks r and computes what its commands need to know. A request that
// is wrong, or that has nothing to do, ends here: done is true and r.Err set.
func (l *LUN) prepare(r *Request) (done bool) {
	r.lun, r.sess, r.next = l, nil, nil
	r.issued, r.parts, r.cancel, r.state, r.ctl, r.once, r.flush = 0, 0, nil, reqIdle, false, false, flushNone
	r.redone = 0
	r.Err, r.Residual, r.Status = nil, 0, 0
	g := l.geo.Load()
	r.geo = g
	info := &g.info
	r.total = r.Len
	if r.Op == OpRead || r.Op == OpWrite || r.Op == OpCompareAndWrite {
		r.total = int64(len(r.Buf))
		if r.Segs != nil {
			r.total = 0
			for _, s := range r.Segs {
				r.total += int64(len(s))
			}
		}
	}
	switch r.Op {
	case OpRead, OpVerify:
	case OpWrite, OpDiscard, OpWriteZeroes, OpCompareAndWrite:
		if info.ReadOnly {
			r.Err = blockdev.ErrReadOnly
			return true
		}
	case OpFlush:
		r.single()
		r.told, r.covers = l.cache.teller(r).Load(), l.cache.written.Load()
		return false
	case OpCDB:
		return r.prepareCDB()
	default:
		r.Err = fmt.Errorf("%w: operation %d", ErrInvalid, r.Op)
		return true
	}
	n := r.total
	if r.Op == OpCompareAndWrite {
		if g.maxCAW == 0 {
			r.Err = fmt.Errorf("%w: the target has no COMPARE AND WRITE", blockdev.ErrNotSupported)
			return true
		}
		n /= 2
		if n*2 != r.total || n == 0 || n > g.maxCAW || r.Segs != nil {
			r.Err = fmt.Errorf("%w: COMPARE AND WRITE takes Buf with twice 1 to %d blocks, not %d bytes", ErrInvalid, g.maxCAW/int64(info.BlockSize), r.total)
			return true
		}
	}
	if r.Err = blockdev.CheckRange(r.Off, n, info.Size, info.BlockSize); r.Err != nil || n == 0 {
		return true
	}
	// What must be durable and has no FUA bit is followed by a flush: WRITE SAME and
	// UNMAP never have one (SBC-3 §5.52, §5.35), the others where DPOFUA is clear.
	if bare := r.Op == OpWriteZeroes && g.maxSame > 0 || r.Op == OpDiscard; r.FUA && info.WriteCache && (bare || !g.fua) {
		r.flush = flushAfter
	}
	switch r.Op {
	case OpDiscard:
		if !info.Discard {
			r.Err = blockdev.ErrNotSupported
			return true
		}
	case OpWriteZeroes:
		if r.NoData && g.maxSame == 0 {
			r.Err = fmt.Errorf("%w: the target has no WRITE SAME", blockdev.ErrNotSupported)
			return true
		}
	case OpCompareAndWrite:
		r.single()
	}
	return false
}

// single makes r a request of one command.
func (r *Request) single() { r.total = 1 }

func (r *Request) prepareCDB() (done bool) {
	r.single()
	r.once = true
	n := len(r.CDB)
	switch {
	case n < 6 || n > 260:
		r.Err = fmt.Errorf("%w: a CDB of %d bytes", ErrInvalid, n)
	case r.Segs != nil || int64(len(r.Buf)) > 1<<24:
		r.Err = fmt.Errorf("%w: data of a raw CDB must be in Buf, at most 16 MiB", ErrInvalid)
	}
	return r.Err != nil
}

// carve makes the next command of r in slot t.
func (r *Request) carve(t *task, c *conn) {
	g := r.geo
	bs := int64(g.info.BlockSize)
	rest := r.total - r.issued
	limit := rest
	switch r.Op {
	case OpRead, OpWrite:
		limit = g.maxIO
		if c.maxTransfer > 0 {
			limit = min(limit, max(c.maxTransfer/bs, 1)*bs)
		}
	case OpVerify:
		limit = g.maxVerify
	case OpDiscard:
		limit = g.maxUnmap
		if g.trimSame {
			limit = g.maxSame
		}
	case OpWriteZeroes:
		if limit = g.maxSame; limit == 0 {
			limit = min(g.maxIO, int64(len(zeroes))*zeroSegs)
		}
	}
	t.req, t.lun = r, r.lun.wire
	t.off, t.n = r.issued, min(rest, limit) // a flush after the data covers nothing more
	t.inLen, t.outLen, t.ahs = 0, 0, nil
	r.issued += t.n
	r.build(t, bs)
	t.bufs.In, t.bufs.Out = nil, nil
	if t.inLen > 0 {
		t.bufs.In = t.segs
	} else if t.outLen > 0 {
		t.bufs.Out = t.segs
	}
}

// build writes the CDB and lists the data of the command for t's part of r.
func (r *Request) build(t *task, bs int64) {
	var blocks uint32
	var lba uint64
	if bs > 0 { // a LUN that is not opened yet takes raw CDBs only
		lba, blocks = uint64((r.Off+t.off)/bs), uint32(t.n/bs)
	}
	cdb := t.cdb[:0]
	segs := t.segs[:0]
	if r.flush == flushNow {
		cdb = scsi.AppendSyncCache(cdb, 0, 0, false)
		t.cdbLen, t.segs = len(cdb), segs
		return
	}
	fua := r.FUA && r.geo.fua
	switch r.Op {
	case OpRead:
		cdb = scsi.AppendRead(cdb, lba, blocks, false)
		t.inLen = uint32(t.n)
		segs = r.cut(segs, t.off, t.n)
	case OpWrite:
		cdb = scsi.AppendWrite(cdb, lba, blocks, fua)
		t.outLen = uint32(t.n)
		segs = r.cut(segs, t.off, t.n)
	case OpFlush:
		cdb = r.buildFlush(cdb)
	case OpDiscard:
		if r.geo.trimSame {
			cdb = scsi.AppendWriteSame16(cdb, lba, blocks, scsi.FlagUnmap)
			segs = append(segs, zeroes[:bs])
			t.outLen = uint32(bs)
			break
		}
		list := scsi.AppendUnmapList(t.param[:0], []scsi.Range{{LBA: lba, Blocks: blocks}})
		cdb = scsi.AppendUnmap(cdb, uint16(len(list)))
		segs = append(segs, list)
		t.outLen = uint32(len(list))
	case OpWriteZeroes:
		if r.geo.maxSame == 0 {
			cdb = scsi.AppendWrite(cdb, lba, blocks, fua)
			t.outLen = uint32(t.n)
			for n := t.n; n > 0; n -= int64(len(zeroes)) {
				segs = append(segs, zeroes[:min(n, int64(len(zeroes)))])
			}
			break
		}
		var flags byte
		if r.MayUnmap && r.geo.sameUnmap {
			flags = scsi.FlagUnmap
		}
		cdb = scsi.AppendWriteSame16(cdb, lba, blocks, flags)
		segs = append(segs, zeroes[:bs])
		t.outLen = uint32(bs)
	case OpVerify:
		cdb = scsi.AppendVerify(cdb, lba, blocks, 0)
	case OpCompareAndWrite:
		n := int64(len(r.Buf)) / 2
		cdb = scsi.AppendCompareAndWrite(cdb, uint64(r.Off/bs), uint8(n/bs), fua)
		t.outLen = uint32(len(r.Buf))
		segs = append(segs, r.Buf)
	case OpCDB:
		n := copy(t.cdb[:], r.CDB)
		cdb = t.cdb[:n]
		t.ahs = iscsi.AppendExtendedCDB(nil, r.CDB) // nothing for 16 bytes
		if len(r.Buf) > 0 {
			segs = append(segs, r.Buf)
			if r.DataIn {
				t.inLen = uint32(len(r.Buf))
			} else {
				t.outLen = uint32(len(r.Buf))
			}
		}
	}
	t.cdbLen, t.segs = len(cdb), segs
}

// buildFlush covers the request's range, or the whole medium.
func (r *Request) buildFlush(cdb []byte) []byte {
	bs := int64(r.geo.info.BlockSize)
	if r.Len <= 0 || bs == 0 || r.Len/bs > 1<<32-1 {
		return scsi.AppendSyncCache(cdb, 0, 0, false)
	}
	first, last := r.Off/bs, (r.Off+r.Len+bs-1)/bs
	return scsi.AppendSyncCache(cdb, uint64(first), uint32(last-first), false)
}

// cut appends the slices that hold [off, off+n) of the request's data.
func (r *Request) cut(segs [][]byte, off, n int64) [][]byte {
	if r.Segs == nil {
		return append(segs, r.Buf[off:off+n])
	}
	for _, s := range r.Segs {
		if off >= int64(len(s)) {
			off -= int64(len(s))
			continue
		}
		s = s[off:]
		off = 0
		if int64(len(s)) > n {
			s = s[:n]
		}
		segs = append(segs, s)
		if n -= int64(len(s)); n == 0 {
			break
		}
	}
	return segs
}

// idempotent reports whether the command may be carried out twice with the
// same result: only such a command is sent again when its fate is unknown.
func (r *Request) idempotent() bool {
	if r.flush == flushNow {
		return true
	}
	switch r.Op {
	case OpRead, OpWrite, OpFlush, OpDiscard, OpWriteZeroes, OpVerify:
		return true
	case OpCDB:
		return !r.once // our own look-ups only read
	}
	return false
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
