package scsi

import (
	"encoding/binary"
	"errors"
	"sync"
	"sync/atomic"

	spc "softiser/internal/scsi"
)

// What EXTENDED COPY and WRITE USING TOKEN have in common: moving blocks between
// two logical units of this device, and remembering how it ended until the
// initiator asks.

// Limits of copies.
const (
	maxCopyTargets  = 8
	maxCopySegments = 16
	maxCopyList     = 2048     // bytes of EXTENDED COPY descriptors
	maxCopyBytes    = 64 << 20 // of one segment
	maxTokenRanges  = 64
	maxTokenBytes   = 1 << 30
	keepCopyResults = 64
	zeroPiece       = 64 << 20
)

// copyResult is how a copy ended, or that it runs.
type copyResult struct {
	nexus  regKey
	list   uint32
	action uint8 // service action of THIRD-PARTY COPY OUT
	info   atomic.Pointer[spc.RODInfo]
}

// copyResults remembers the copies of a logical unit, the oldest forgotten first.
type copyResults struct {
	room chan struct{} // holds a token for each copy that runs
	mu   sync.Mutex
	all  []*copyResult

	background atomic.Int32 // copies that go on behind their status
}

// begin files a new result under the list identifier, instead of an older one.
func (c *copyResults) begin(t *Task, list uint32) *copyResult {
	r := &copyResult{nexus: t.Nexus.regKey(), list: list, action: uint8(t.op.sa)}
	r.info.Store(&spc.RODInfo{Action: r.action, Status: spc.CopyForeground})
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, old := range c.all {
		if old.nexus == r.nexus && old.list == list && (old.action == spc.SAExtendedCopy) == (r.action == spc.SAExtendedCopy) {
			c.all = append(c.all[:i], c.all[i+1:]...)
			break
		}
	}
	if len(c.all) == keepCopyResults {
		c.all = append(c.all[:0], c.all[1:]...)
	}
	c.all = append(c.all, r)
	return r
}

// find returns the result of a list identifier; LID1 and LID4 are apart.
func (c *copyResults) find(t *Task, list uint32, lid1 bool) *copyResult {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := t.Nexus.regKey()
	for _, r := range c.all {
		if r.nexus == k && r.list == list && (r.action == spc.SAExtendedCopy) == lid1 {
			return r
		}
	}
	return nil
}

// finish files the end of a copy; s is nil after success.
func (r *copyResult) finish(s *spc.Sense, blocks uint64, token []byte) {
	i := &spc.RODInfo{Action: r.action, Status: spc.CopyDone, Transfer: blocks, Token: token}
	if s != nil {
		i.Status, i.Final = spc.CopyFailed, spc.StatusCheckCondition
		i.Sense = s.AppendFixed(nil)
	}
	r.info.Store(i)
}

var errAborted = errors.New("scsi: command aborted")

// copyApart runs job, a copy, on a goroutine of its own: it waits for blocks that
// others hold, and a worker that waits would be missing to those others. No more
// copies run at once for a unit than it has workers.
func (t *Task) copyApart(job func(*Task)) {
	port, room := t.Port, t.lu.copies.room // after job the task may belong to someone else
	go func() {
		room <- struct{}{}
		if t.isAborted() {
			t.end()
		} else {
			job(t)
		}
		<-room
		port.Push()
	}()
}

// copyBytes copies n bytes. It stops with errAborted when stop says so. Each
// piece is claimed where it is read, then where it is written.
func (d *Device) copyBytes(src *LU, from int64, dst *LU, to, n int64, stop func() bool) (int64, direction, error) {
	buf := d.bufs.get(stageBytes)
	defer d.bufs.put(buf)
	// Overlapping blocks of one volume are copied backwards, as memmove does.
	backwards := src == dst && from < to && to < from+n
	done := int64(0)
	for done < n {
		k := min(int64(len(buf)), n-done)
		at := done
		if backwards {
			at = n - done - k
		}
		if stop() {
			return done, writing, errAborted
		}
		if err := src.claimed(holdRead, from+at, k, func() error {
			_, err := src.vol.ReadAt(buf[:k], from+at)
			return err
		}); err != nil {
			src.mediumError(err, reading)
			return done, reading, err
		}
		if err := dst.claimed(holdWrite, to+at, k, func() error {
			_, err := dst.vol.WriteAt(buf[:k], to+at)
			return err
		}); err != nil {
			dst.mediumError(err, writing)
			return done, writing, err
		}
		done += k
	}
	return done, writing, dst.settleCopy(to, n)
}

// claimed runs f while the blocks are claimed.
func (lu *LU) claimed(kind holdKind, off, n int64, f func() error) error {
	c, err := lu.claim(kind, off, n)
	if err != nil {
		return err
	}
	defer c.drop()
	if kind == holdWrite {
		lu.touched()
		if lu.journal.stuck.Load() {
			if err := lu.unstick(); err != nil {
				return err
			}
		}
	}
	return f()
}

// settle makes what a copy or UNMAP has changed durable if the unit has no write
// cache.
func (lu *LU) settle(off, n int64) error {
	if lu.geo().info.WriteCache && !lu.modes.wce.Load() {
		return lu.vol.FlushRange(off, n)
	}
	return nil
}

// settleCopy is settle for what no task will report, so that it is counted here.
func (lu *LU) settleCopy(off, n int64) error {
	err := lu.settle(off, n)
	if err != nil {
		lu.mediumError(err, writing)
	}
	return err
}

// zeroBytes makes n bytes zero in claimed pieces.
func (lu *LU) zeroBytes(off, n int64, stop func() bool) error {
	for done := int64(0); done < n; {
		if stop() {
			return errAborted
		}
		at, k := off+done, min(n-done, zeroPiece)
		if err := lu.claimed(holdWrite, at, k, func() error { return lu.vol.WriteZeroes(at, k, true) }); err != nil {
			lu.mediumError(err, writing)
			return err
		}
		done += k
	}
	return lu.settleCopy(off, n)
}

// reachable reports whether t's nexus may read (accRead) or write (accWrite) lu
// right now, as a copy manager has to check for it.
func (t *Task) reachable(lu *LU, a access) bool {
	gates := uint32(gateMedium)
	if a == accWrite {
		gates = gateWrite
	}
	if lu.vol == nil || lu.gate.Load()&gates != 0 {
		return false
	}
	return !lu.conflicts(t, &command{access: a})
}

// findUnit returns the logical unit, visible to the nexus, that a designator
// names.
func (n *Nexus) findUnit(d *spc.Designator) *LU {
	for _, i := range *n.itls.Load() {
		id := i.lu.id
		if d.Association == spc.AssocLU && (d.Type == spc.DesignatorNAA && string(d.ID) == string(id.naa) ||
			d.Type == spc.DesignatorEUI64 && string(d.ID) == string(id.eui)) {
			return i.lu
		}
	}
	return nil
}

// cmdCopyStatus is RECEIVE COPY STATUS(LID1) (SPC-4 §6.24).
func cmdCopyStatus(t *Task) {
	r := t.lu.copies.find(t, uint32(t.CDB[2]), true)
	if r == nil {
		t.badCDB(2)
		return
	}
	i := r.info.Load()
	st := byte(1) // completed without errors
	switch i.Status {
	case spc.CopyForeground, spc.CopyBackground:
		st = 0
	case spc.CopyFailed:
		st = 2
	}
	b := t.getBuf(16)[:12]
	clear(b)
	binary.BigEndian.PutUint32(b, 8)
	b[4] = st
	b[7] = 0xF1 // transfer count in blocks
	binary.BigEndian.PutUint32(b[8:], uint32(min(i.Transfer, 0xFFFFFFFF)))
	t.reply(b, binary.BigEndian.Uint32(t.CDB[10:]))
}

// cmdCopyOperating is RECEIVE COPY OPERATING PARAMETERS (SPC-4 §6.23).
func cmdCopyOperating(t *Task) {
	types := []byte{spc.CopyBlockToBlock, spc.CopyBlockOffset, spc.CopyTargetIdent}
	b := t.getBuf(64)[:44]
	clear(b)
	be := binary.BigEndian
	be.PutUint32(b, uint32(40+len(types)))
	be.PutUint16(b[8:], maxCopyTargets)
	be.PutUint16(b[10:], maxCopySegments)
	be.PutUint32(b[12:], maxCopyList)
	be.PutUint32(b[16:], maxCopyBytes)
	be.PutUint16(b[34:], uint16(t.lu.cfg.Workers)) // total concurrent copies
	b[36] = byte(min(t.lu.cfg.Workers, 255))
	b[37] = t.lu.geo().shift // data segment granularity, log2
	b[43] = byte(len(types))
	t.reply(append(b, types...), be.Uint32(t.CDB[10:]))
}

// vpdThirdPartyCopy is VPD page 8Fh (SPC-4 §7.8.17): what the copy manager can do, as
// descriptors {type (2), length (2), data} of a multiple of four bytes.
func vpdThirdPartyCopy(_ *Task, b []byte) []byte {
	be := binary.BigEndian
	desc := func(typ uint16, p []byte) {
		for len(p)%4 != 0 {
			p = append(p, 0)
		}
		b = be.AppendUint16(b, typ)
		b = append(be.AppendUint16(b, uint16(len(p))), p...)
	}
	limits := make([]byte, 32) // block device ROD token limits
	be.PutUint16(limits[6:], maxTokenRanges)
	be.PutUint32(limits[8:], maxTokenSeconds)
	be.PutUint32(limits[12:], defaultTokenSeconds)
	be.PutUint64(limits[16:], maxTokenBytes)
	be.PutUint64(limits[24:], 64<<20)
	desc(0x0000, limits)
	out := []byte{byte(spc.OpThirdPartyOut), 3, spc.SAExtendedCopy, spc.SAPopulateToken, spc.SAWriteUsingToken}
	in := []byte{byte(spc.OpThirdPartyIn), 3, spc.SACopyStatus, spc.SACopyOperating, spc.SARODTokenInfo}
	desc(0x0001, append(append([]byte{byte(len(out) + len(in))}, out...), in...))
	param := make([]byte, 28) // limits of EXTENDED COPY lists
	be.PutUint16(param[4:], maxCopyTargets)
	be.PutUint16(param[6:], maxCopySegments)
	be.PutUint32(param[8:], maxCopyList)
	desc(0x0004, param)
	desc(0x0008, []byte{3, spc.CopyBlockToBlock, spc.CopyBlockOffset, spc.CopyTargetIdent})
	general := make([]byte, 32)
	be.PutUint32(general, defaultWorkers)
	be.PutUint32(general[4:], defaultWorkers)
	be.PutUint32(general[8:], maxCopyBytes)
	general[12] = 9
	desc(0x8001, general)
	return b
}
