package initiator

import (
	"fmt"

	"softiser/blockdev"
	"softiser/internal/iscsi"
	"softiser/internal/spc"
)

// operation is what the session knows of an Op. Its functions keep no reference.
type operation struct {
	data       bool // covers Buf or Segs; otherwise Len
	changes    bool // refused by a LUN that is read-only
	caches     bool // what it writes may wait in the target's cache
	repeatable bool // carried out twice it has the same result
	single     bool // always one command

	// span returns how many bytes from Request.Off it is about; nil: no range.
	span func(r *request, g *geometry) (int64, error)
	// begin takes note of what the request needs; an error ends it. nil: of nothing.
	begin func(l *LUN, r *request, g *geometry) error
	// bare reports that its commands have no FUA bit, so that a flush makes them durable.
	bare func(g *geometry) bool
	// limit returns the most that one command covers, bytes; nil: everything.
	limit func(g *geometry, c *conn) int64
	// build writes the CDB of a command that covers p into its slot, and lists its data.
	build func(r *request, t *task, p part)
}

// part is what one command covers of a request, in blocks.
type part struct {
	lba    uint64
	blocks uint32
	bs     int64 // bytes; 0: the LUN is not opened yet, and takes raw CDBs only
}

// operations is the table of Op.
var operations = [...]operation{
	OpRead:    {data: true, repeatable: true, span: wholeSpan, bare: noFUA, limit: ioLimit, build: buildRead},
	OpWrite:   {data: true, changes: true, caches: true, repeatable: true, span: wholeSpan, bare: noFUA, limit: ioLimit, build: buildWrite},
	OpFlush:   {repeatable: true, single: true, begin: beginFlush, build: buildFlush},
	OpDiscard: {changes: true, repeatable: true, span: wholeSpan, begin: beginDiscard, bare: always, limit: discardLimit, build: buildDiscard},
	OpWriteZeroes: {changes: true, caches: true, repeatable: true, span: wholeSpan, begin: beginZeroes, bare: bareZeroes,
		limit: zeroesLimit, build: buildZeroes},
	OpVerify:          {repeatable: true, span: wholeSpan, bare: noFUA, limit: verifyLimit, build: buildVerify},
	OpCompareAndWrite: {data: true, changes: true, caches: true, single: true, span: halfSpan, bare: noFUA, build: buildCompareAndWrite},
	OpCDB:             {repeatable: true, single: true, begin: beginCDB, build: buildCDB}, // but see Request.once
}

// rowOf returns what is known of an Op, nil when there is no such Op.
func rowOf(op Op) *operation {
	if int(op) >= len(operations) {
		return nil
	}
	return &operations[op]
}

func wholeSpan(r *request, _ *geometry) (int64, error) { return r.total, nil }

// halfSpan is that of COMPARE AND WRITE, whose data are what to find and what to write.
func halfSpan(r *request, g *geometry) (int64, error) {
	if g.maxCAW == 0 {
		return 0, fmt.Errorf("%w: the target has no COMPARE AND WRITE", blockdev.ErrNotSupported)
	}
	n := r.total / 2
	if n*2 != r.total || n == 0 || n > g.maxCAW || r.Segs != nil {
		return 0, fmt.Errorf("%w: COMPARE AND WRITE takes Buf with twice 1 to %d blocks, not %d bytes", ErrInvalid, g.maxCAW/int64(g.info.BlockSize), r.total)
	}
	return n, nil
}

func beginFlush(l *LUN, r *request, _ *geometry) error {
	r.sync = l.epoch.Load().Begin(r.Flusher)
	return nil
}

func beginDiscard(_ *LUN, _ *request, g *geometry) error {
	if !g.info.Discard {
		return blockdev.ErrNotSupported
	}
	return nil
}

func beginZeroes(_ *LUN, r *request, g *geometry) error {
	if r.NoData && g.maxSame == 0 {
		return fmt.Errorf("%w: the target has no WRITE SAME", blockdev.ErrNotSupported)
	}
	return nil
}

func beginCDB(_ *LUN, r *request, _ *geometry) error {
	r.once = true
	switch n := len(r.CDB); {
	case n < 6 || n > 260:
		return fmt.Errorf("%w: a CDB of %d bytes", ErrInvalid, n)
	case r.Segs != nil || int64(len(r.Buf)) > 1<<24:
		return fmt.Errorf("%w: data of a raw CDB must be in Buf, at most 16 MiB", ErrInvalid)
	}
	return nil
}

// noFUA and the functions below are values of operation.bare. WRITE SAME and UNMAP have no FUA
// bit (SBC-3 §5.43, §5.28), the other commands have one where the target sets DPOFUA.
func noFUA(g *geometry) bool      { return !g.fua }
func always(*geometry) bool       { return true }
func bareZeroes(g *geometry) bool { return g.maxSame > 0 || !g.fua }

func ioLimit(g *geometry, c *conn) int64 {
	if c.maxTransfer > 0 {
		bs := int64(g.info.BlockSize)
		return min(g.maxIO, max(c.maxTransfer/bs, 1)*bs)
	}
	return g.maxIO
}

func verifyLimit(g *geometry, _ *conn) int64 { return g.maxVerify }

func discardLimit(g *geometry, _ *conn) int64 {
	if g.trimSame {
		return g.maxSame
	}
	return g.maxUnmap
}

func zeroesLimit(g *geometry, _ *conn) int64 {
	if g.maxSame == 0 { // no WRITE SAME: zeroes are written
		return min(g.maxIO, int64(len(zeroes))*zeroSegs)
	}
	return g.maxSame
}

func buildRead(r *request, t *task, p part) {
	t.cdbLen = uint8(len(spc.AppendRead(t.cdb[:0], p.lba, p.blocks, false)))
	t.inLen = uint32(t.n)
	t.segs = r.Part(t.segs, t.off, t.n)
}

func buildWrite(r *request, t *task, p part) {
	t.cdbLen = uint8(len(spc.AppendWrite(t.cdb[:0], p.lba, p.blocks, r.FUA && r.geo.fua)))
	t.outLen = uint32(t.n)
	t.segs = r.Part(t.segs, t.off, t.n)
}

// buildFlush covers the request's range, or the whole medium.
func buildFlush(r *request, t *task, p part) {
	var first, last int64
	if r.Len > 0 && p.bs > 0 && r.Len/p.bs <= 1<<32-1 {
		first, last = r.Off/p.bs, (r.Off+r.Len+p.bs-1)/p.bs
	}
	t.cdbLen = uint8(len(spc.AppendSyncCache(t.cdb[:0], uint64(first), uint32(last-first), false)))
}

func buildDiscard(r *request, t *task, p part) {
	if r.geo.trimSame {
		t.sameZeroes(p, spc.FlagUnmap)
		return
	}
	list := spc.AppendUnmapList(t.param[:0], []spc.Range{{LBA: p.lba, Blocks: p.blocks}})
	t.cdbLen = uint8(len(spc.AppendUnmap(t.cdb[:0], uint16(len(list)))))
	t.outLen = uint32(len(list))
	t.segs = append(t.segs, list)
}

func buildZeroes(r *request, t *task, p part) {
	if r.geo.maxSame > 0 {
		var flags byte
		if r.MayUnmap && r.geo.sameUnmap {
			flags = spc.FlagUnmap
		}
		t.sameZeroes(p, flags)
		return
	}
	t.cdbLen = uint8(len(spc.AppendWrite(t.cdb[:0], p.lba, p.blocks, r.FUA && r.geo.fua)))
	t.outLen = uint32(t.n)
	for n := t.n; n > 0; n -= int64(len(zeroes)) {
		t.segs = append(t.segs, zeroes[:min(n, int64(len(zeroes)))])
	}
}

// sameZeroes makes t a WRITE SAME of zeroes.
func (t *task) sameZeroes(p part, flags byte) {
	t.cdbLen = uint8(len(spc.AppendWriteSame16(t.cdb[:0], p.lba, p.blocks, flags)))
	t.outLen = uint32(p.bs)
	t.segs = append(t.segs, zeroes[:p.bs])
}

func buildVerify(_ *request, t *task, p part) {
	t.cdbLen = uint8(len(spc.AppendVerify(t.cdb[:0], p.lba, p.blocks, 0)))
}

func buildCompareAndWrite(r *request, t *task, p part) {
	blocks := uint8(int64(len(r.Buf)) / 2 / p.bs)
	t.cdbLen = uint8(len(spc.AppendCompareAndWrite(t.cdb[:0], p.lba, blocks, r.FUA && r.geo.fua)))
	t.outLen = uint32(len(r.Buf))
	t.segs = append(t.segs, r.Buf)
}

func buildCDB(r *request, t *task, _ part) {
	t.cdbLen = uint8(copy(t.cdb[:], r.CDB))
	t.ahs = iscsi.AppendExtendedCDB(nil, r.CDB) // nothing for 16 bytes
	if len(r.Buf) == 0 {
		return
	}
	t.segs = append(t.segs, r.Buf)
	if r.DataIn {
		t.inLen = uint32(len(r.Buf))
	} else {
		t.outLen = uint32(len(r.Buf))
	}
}
