package nvmf

import (
	"fmt"
	"sync/atomic"

	"softiser/blockdev"
	"softiser/initiator/blockio"
	"softiser/internal/list"
	"softiser/internal/nvme"
)

// request is what an association keeps of a blockio.Request, in its Driver: made at its
// first use, and used again with it. Its queue's lock guards it after Submit.
type request struct {
	*blockio.Request
	ns     *Namespace
	geo    *geometry
	queue  atomic.Pointer[queue] // stays the same for the same Request, so that a load keeps to its queue
	node   list.Node[request]    // in waiting
	next   *request              // in done
	op     *operation
	state  reqState
	total  int64 // bytes to cover, by data or by address range
	issued int64 // of these: handed to commands
	parts  int32 // commands under way
	phase  phase
	redone uint8 // times that the data was written again, because the association was lost before the flush
	losses uint32
	sync   blockio.Flush // of a flush: what it covers
	cancel error         // why no further command is started, and what Err becomes
}

// phase is how a request with FUA becomes durable where its command has no FUA bit.
//
//	after --data written--> now --Flush done--> end
//	  ^-- the association was lost between --/
type phase uint8

const (
	flushNone  phase = iota
	flushAfter       // when all of its commands have ended, Flush
	flushNow         // which is what is sent, or to be sent, now
)

// maxAgain is how often the data of one request is written again.
const maxAgain = 3

// stateOf returns what is kept of r. A copy of a Request that was used before gets its own.
func stateOf(r *blockio.Request) *request {
	q, ok := r.Driver.(*request)
	if !ok || q.Request != r {
		q = &request{Request: r}
		r.Driver = q
	}
	return q
}

// operation is what the host knows of an Op.
type operation struct {
	name       string
	data       bool // covers Buf or Segs; otherwise Len
	changes    bool // refused by a namespace that is read-only
	caches     bool // what it writes may wait in the controller's cache
	bare       bool // its command has no FUA bit
	repeatable bool // carried out twice it has the same result
	single     bool // one command, or one pair

	check func(r *request, g *geometry) error // what the controller lacks; nil: nothing
	limit func(g *geometry) int64             // the most that one command covers, bytes
	build func(r *request, c *command)
}

// operations is the table of Op.
var operations = [...]operation{
	blockio.OpRead:    {name: "Read", data: true, repeatable: true, limit: ioLimit, build: buildRead},
	blockio.OpWrite:   {name: "Write", data: true, changes: true, caches: true, repeatable: true, limit: ioLimit, build: buildWrite},
	blockio.OpFlush:   {name: "Flush", repeatable: true, single: true, build: buildFlush},
	blockio.OpDiscard: {name: "Dataset Management", changes: true, bare: true, repeatable: true, check: hasDiscard, limit: discardLimit, build: buildDiscard},
	blockio.OpWriteZeroes: {name: "Write Zeroes", changes: true, caches: true, repeatable: true, check: hasZeroes,
		limit: zeroesLimit, build: buildZeroes},
	blockio.OpVerify:          {name: "Verify", repeatable: true, check: hasVerify, limit: verifyLimit, build: buildVerify},
	blockio.OpCompareAndWrite: {name: "Compare and Write", data: true, changes: true, caches: true, single: true, check: hasCompare, build: buildCompare},
	blockio.OpCDB:             {name: "a SCSI command", check: hasNoCDB},
	blockio.OpSQE:             {name: "a raw command", single: true, check: checkSQE, build: buildSQE},
}

func ioLimit(g *geometry) int64      { return g.maxIO }
func discardLimit(g *geometry) int64 { return g.maxDiscard }
func verifyLimit(g *geometry) int64  { return g.maxVerify }

func zeroesLimit(g *geometry) int64 {
	if g.maxZeroes == 0 {
		return min(g.maxIO, int64(len(zeroes))*zeroSegs)
	}
	return g.maxZeroes
}

func lacks(what string) error {
	return fmt.Errorf("%w: the controller has no %s", blockdev.ErrNotSupported, what)
}

func hasDiscard(_ *request, g *geometry) error {
	if g.maxDiscard == 0 {
		return lacks("Dataset Management")
	}
	return nil
}

func hasZeroes(r *request, g *geometry) error {
	if r.NoData && g.maxZeroes == 0 {
		return lacks("Write Zeroes")
	}
	return nil
}

func hasVerify(_ *request, g *geometry) error {
	if g.maxVerify == 0 {
		return lacks("Verify")
	}
	return nil
}

func hasCompare(r *request, g *geometry) error {
	if g.maxCompare == 0 {
		return lacks("fused Compare and Write")
	}
	if n := r.total / 2; n*2 != r.total || n == 0 || n > g.maxCompare || r.Segs != nil {
		return fmt.Errorf("%w: a compare and write takes Buf with twice 1 to %d blocks, not %d bytes", blockio.ErrInvalid, g.maxCompare>>g.shift, r.total)
	}
	return nil
}

func hasNoCDB(*request, *geometry) error { return lacks("SCSI commands") }

// checkSQE: commands of Fabrics and fused ones are not for others to make.
func checkSQE(r *request, g *geometry) error {
	if len(r.SQE) != nvme.SQELen || r.Segs != nil || int64(len(r.Buf)) > g.maxIO {
		return fmt.Errorf("%w: a raw command has %d bytes, and up to %d of data in Buf", blockio.ErrInvalid, nvme.SQELen, g.maxIO)
	}
	s := (*nvme.SQE)(r.SQE)
	switch op := s.Opcode(); {
	case op == nvme.OpFabrics, s.Fuse() != nvme.FuseNone:
		return fmt.Errorf("%w: %v, FUSE %d, is not sent as a raw command", blockio.ErrInvalid, op, s.Fuse())
	case len(r.Buf) > 0 && !s.FromHost() && !s.ToHost():
		return fmt.Errorf("%w: %v moves no data", blockio.ErrInvalid, op)
	}
	return nil
}

// zeroes is what is written where there is no Write Zeroes. It is never written to.
var zeroes [64 << 10]byte

const zeroSegs = 16

// begin checks r and computes what its commands need to know. A request that is wrong, or
// that has nothing to do, ends here: done is true, and r.Err set.
func (n *Namespace) begin(r *request) (done bool) {
	r.ns, r.next, r.cancel = n, nil, nil
	r.issued, r.parts, r.phase, r.redone = 0, 0, flushNone, 0
	r.Err, r.Residual, r.Status, r.Sent = nil, 0, 0, false
	g := n.geo.Load()
	r.geo = g
	if int(r.Op) >= len(operations) {
		r.Err = fmt.Errorf("%w: operation %d", blockio.ErrInvalid, r.Op)
		return true
	}
	op := &operations[r.Op]
	r.op = op
	if op.changes && g.info.ReadOnly {
		r.Err = blockdev.ErrReadOnly
		return true
	}
	if r.total = r.Len; op.data {
		r.total = r.DataLen()
	}
	if op.check != nil {
		if r.Err = op.check(r, g); r.Err != nil {
			return true
		}
	}
	if r.Op == blockio.OpFlush {
		r.sync = n.epoch.Load().Begin(r.Flusher)
		r.total = 1
		return false
	}
	if r.Op == blockio.OpSQE {
		r.total = 1
		return false
	}
	span := r.total
	if r.Op == blockio.OpCompareAndWrite {
		span /= 2
	}
	if r.Err = g.info.Check(r.Off, span); r.Err != nil || span == 0 {
		return true
	}
	if op.single {
		r.total = 1
	}
	if r.FUA && g.info.WriteCache && op.bare {
		r.phase = flushAfter
	}
	return false
}

// carve makes the next command of r in c. The caller holds q.mu.
func (r *request) carve(c *command) {
	rest := r.total - r.issued
	c.n = rest
	if r.op.limit != nil && r.phase != flushNow {
		c.n = min(rest, r.op.limit(r.geo))
	}
	c.req, c.off = r, r.issued
	c.segs = c.segs[:0]
	r.issued += c.n
	if r.phase == flushNow {
		buildFlush(r, c)
	} else {
		r.op.build(r, c)
	}
	c.Data = c.segs
}

// block sets command c's range.
func (r *request) block(c *command, op nvme.Opcode) nvme.ReadWrite {
	c.SQE.Init(op, r.ns.id)
	w := c.SQE.ReadWrite()
	w.SetRange(uint64(r.Off+c.off)>>r.geo.shift, uint32(c.n>>r.geo.shift))
	return w
}

func buildRead(r *request, c *command) {
	r.block(c, nvme.OpRead)
	c.segs = r.Part(c.segs, c.off, c.n)
}

func buildWrite(r *request, c *command) {
	r.block(c, nvme.OpWrite).SetFUA(r.FUA)
	c.segs = r.Part(c.segs, c.off, c.n)
}

func buildFlush(r *request, c *command) { c.SQE.Init(nvme.OpFlush, r.ns.id) }

func buildDiscard(r *request, c *command) {
	c.SQE.NewDeallocate(r.ns.id, 1)
	list := nvme.AppendDSMRange(c.param[:0], nvme.BlockRange{LBA: uint64(r.Off+c.off) >> r.geo.shift, Blocks: uint64(c.n) >> r.geo.shift})
	c.segs = append(c.segs, list)
}

func buildZeroes(r *request, c *command) {
	if r.geo.maxZeroes > 0 {
		w := r.block(c, nvme.OpWriteZeroes)
		w.SetFUA(r.FUA)
		w.SetDeallocate(r.MayUnmap && r.geo.deallocate)
		return
	}
	r.block(c, nvme.OpWrite).SetFUA(r.FUA)
	for n := c.n; n > 0; n -= int64(len(zeroes)) {
		c.segs = append(c.segs, zeroes[:min(n, int64(len(zeroes)))])
	}
}

func buildVerify(r *request, c *command) { r.block(c, nvme.OpVerify) }

// buildCompare makes the first of the fused pair; queue.sendPairLocked makes the second.
func buildCompare(r *request, c *command) { r.fused(c, nvme.OpCompare, nvme.FuseFirst, 0) }

func buildSQE(r *request, c *command) {
	c.SQE = nvme.SQE(r.SQE)
	c.SQE.SetNSID(r.ns.id)
	if len(r.Buf) > 0 {
		c.segs = append(c.segs, r.Buf)
	}
}

// fused makes one command of a pair, whose data begins half times half of Buf.
func (r *request) fused(c *command, op nvme.Opcode, f nvme.Fuse, half int) {
	n := len(r.Buf) / 2
	c.SQE.Init(op, r.ns.id)
	c.SQE.SetFuse(f)
	w := c.SQE.ReadWrite()
	w.SetRange(uint64(r.Off)>>r.geo.shift, uint32(n>>r.geo.shift))
	w.SetFUA(r.FUA && f == nvme.FuseSecond)
	c.segs = append(c.segs[:0], r.Buf[half*n:][:n])
	c.Data = c.segs
}

// cached reports whether an acknowledged command of r waits for a flush.
func (r *request) cached() bool {
	return r.op.caches && r.geo.info.WriteCache && r.phase != flushNow && !r.FUA
}
