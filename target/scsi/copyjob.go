package scsi

import (
	"encoding/binary"
	"sync"
	"sync/atomic"

	"softiser/internal/spc"

	"softiser/target/volume"
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
)

// copyResult is how a copy ended, or that it runs.
type copyResult struct {
	nexus  volume.Registrant
	list   uint32
	action uint8 // service action of THIRD-PARTY COPY OUT
	info   atomic.Pointer[spc.RODInfo]
}

// copyResults remembers the copies of a logical unit, the oldest forgotten first.
type copyResults struct {
	room chan struct{} // holds a token for each copy that runs
	mu   sync.Mutex    // guards all
	all  []*copyResult

	background atomic.Int32 // copies that go on behind their status
}

// begin files a new result under the list identifier, instead of an older one. If that is of a copy that runs,
// there is none: the task is to be refused (SPC-4 §6.4.3.2; SCST and FreeBSD's CTL refuse as well).
func (c *copyResults) begin(t *Task, list uint32) *copyResult {
	r := &copyResult{nexus: t.Nexus.client.ID, list: list, action: uint8(t.op.sa)}
	r.info.Store(&spc.RODInfo{Action: r.action, Status: spc.CopyForeground})
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, old := range c.all {
		if old.nexus == r.nexus && old.list == list && (old.action == spc.SAExtendedCopy) == (r.action == spc.SAExtendedCopy) {
			if old.runs() {
				return nil
			}
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

// runs reports whether the copy has not ended.
func (r *copyResult) runs() bool {
	s := r.info.Load().Status
	return s == spc.CopyForeground || s == spc.CopyBackground
}

// find returns the result of a list identifier; LID1 and LID4 are apart.
func (c *copyResults) find(t *Task, list uint32, lid1 bool) *copyResult {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := t.Nexus.client.ID
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
		if s.Key == spc.KeyAborted {
			i.Status = spc.CopyAborted
		}
		i.Sense = s.AppendFixed(nil)
	}
	r.info.Store(i)
}

// copyApart runs job, a copy, on a goroutine of its own: it waits for blocks that
// others hold, and a worker that waits would be missing to those others. No more
// copies run at once for a unit than it has workers.
func copyApart(t *Task, job func(*Task)) {
	port, room := t.Port.Via(), t.lu.copies.room // after its end the task may belong to someone else
	go func() {
		defer port.Push()
		select {
		case room <- struct{}{}:
			defer func() { <-room }()
		case <-t.Stop().Done():
		}
		if t.Aborted() {
			t.end()
			return
		}
		job(t)
	}()
}

// findUnit returns the logical unit, visible to the nexus, that a designator
// names.
func (n *Nexus) findUnit(d *spc.Designator) *LU {
	for _, i := range *n.itls.Load() {
		id := i.lu.vol.Identity()
		if d.Association == spc.AssocLU && (d.Type == spc.DesignatorNAA && string(d.ID) == string(id.NAA) ||
			d.Type == spc.DesignatorEUI64 && string(d.ID) == string(id.EUI)) {
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
	case spc.CopyFailed, spc.CopyAborted:
		st = 2
	}
	b := t.data.get(16)[:12]
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
	b := t.data.get(64)[:44]
	clear(b)
	be := binary.BigEndian
	be.PutUint32(b, uint32(40+len(types)))
	b[4] = 1 // SNLID: who does not want to count may go without a list identifier
	be.PutUint16(b[8:], maxCopyTargets)
	be.PutUint16(b[10:], maxCopySegments)
	be.PutUint32(b[12:], maxCopyList)
	be.PutUint32(b[16:], maxCopyBytes)
	be.PutUint16(b[34:], uint16(t.lu.cfg.Workers)) // total concurrent copies
	b[36] = byte(min(t.lu.cfg.Workers, 255))
	b[37] = t.lu.geo().Shift // data segment granularity, log2
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
