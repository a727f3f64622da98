package iscsitcp

import (
	"slices"
	"time"

	"softiser/internal/iscsi"
	"softiser/internal/segs"
)

// recovery is the layer of a target's connection that works at error recovery level 1
// and above. It wraps the connection: what it has a say in goes through it, at one place
// each, and where the level is 0 there is none and that place is one comparison.
//
//	                upper layer
//	SendControl │ PutData │ GetData       ▲ Reject, SNACK that cannot be served
//	     sent   │   put   │  watch        │
//	────────────┴─────────┴───────────────┴──── recovery: keeper, lost Data-Outs
//	acked: ExpStatSN of each PDU · snack · skip, dataOutEnded · tosses: a damaged header
//	                receiver
//
// Conn.mu guards it.
type recovery struct {
	keeper
	c    *Conn
	late *time.Timer // runs while Data-Outs are due
}

func newRecovery(c *Conn) *recovery { return &recovery{keeper: newKeeper(c.cfg.Memory), c: c} }

// Recovery implements iscsi.Datamover.
func (c *Conn) Recovery() iscsi.Recovery {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.rec == nil {
		return nil
	}
	return c.rec
}

// ended stops the layer with its connection. What is kept stays for another connection
// to adopt, where the level allows that.
func (rec *recovery) ended() {
	if rec.c.params.ErrorRecoveryLevel < 2 {
		rec.close()
	}
	if rec.late != nil {
		rec.late.Stop()
	}
}

// put is PutData: its Data-Ins are kept until they are acknowledged. A
// Data-In at the end of a burst asks for the acknowledgement, unless it is the last
// one, which the status acknowledges (RFC 7143 §11.7.2).
func (rec *recovery) put(x *iscsi.Transfer, left segs.View) {
	c := rec.c
	t := rec.task(x)
	kept := rec.copyOf(t, x)
	for off := uint32(0); off < x.Len; {
		inBurst := c.params.MaxBurstLength - (x.Offset+off)%c.params.MaxBurstLength
		n := min(c.params.MaxXmitDataSegmentLength, x.Len-off, inBurst)
		end := off+n == x.Len
		over := end && x.Final
		p := keptPDU{off: x.Offset + off, final: n == inBurst || over, ack: n == inBurst && !over}
		if kept != nil {
			p.data = kept[off : off+n : off+n]
		}
		t.pdus = append(t.pdus, p)
		rec.pdus++
		o := rec.dataIn(t, len(t.pdus)-1)
		o.xfer, o.last = x, end
		if kept == nil {
			o.Data = left.First(int(n))
			left.Skip(int(n))
		}
		off += n
	}
	snOf(x.Ref).setDataSN(t.next())
}

// Forget implements iscsi.Recovery.
func (rec *recovery) Forget(itt uint32) {
	c := rec.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if t := rec.tasks[itt]; t != nil && !t.answered {
		rec.forget(t)
	}
}

// Holds implements iscsi.Recovery.
func (rec *recovery) Holds(itt uint32) (when uint64) {
	c := rec.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if i := rec.answer(itt); i >= 0 {
		when = rec.status[i].when
	}
	return when
}

// Discard implements iscsi.Recovery.
func (rec *recovery) Discard() {
	c := rec.c
	c.mu.Lock()
	defer c.mu.Unlock()
	rec.close()
}

// surrender gives up what is kept for a task: its data, nil if there is none, and
// its response, nil if it runs. An earlier task with its tag may have been answered, and the
// initiator, who has the answer, not yet have acknowledged it.
func (rec *recovery) surrender(itt uint32, runs bool) (*keptTask, *keptStatus) {
	c := rec.c
	c.mu.Lock()
	defer c.mu.Unlock()
	t, i := rec.tasks[itt], -1
	switch {
	case !runs:
		if i = rec.answer(itt); i >= 0 {
			t = rec.status[i].task
		}
	case t != nil && t.answered:
		t = nil
	}
	if t != nil {
		if rec.tasks[itt] == t {
			delete(rec.tasks, itt)
		}
		delete(rec.tags, t.tag)
		rec.room += t.bytes // room in this connection's account; the bytes stay reserved among all connections
		rec.pdus -= len(t.pdus)
	}
	if i >= 0 {
		s := rec.status[i]
		rec.give(len(s.data))
		rec.status = slices.Delete(rec.status, i, i+1)
		return t, &s
	}
	return t, nil
}

// Adopt implements iscsi.Recovery (RFC 7143 §7.2.2, §11.5.6).
func (rec *recovery) Adopt(from iscsi.Recovery, itt, exp uint32, ref *iscsi.Ref, answer *iscsi.PDU) (answered, lost bool) {
	c := rec.c
	t, s := from.(*recovery).surrender(itt, ref != nil)
	c.mu.Lock()
	defer c.mu.Unlock()
	if ref != nil && exp != 0 {
		// R2Ts are numbered on from what the initiator has seen.
		if sn := snOf(ref); exp-sn.r2tSN() <= c.params.MaxOutstandingR2T {
			sn.setR2TSN(exp)
		}
	}
	if s != nil {
		answer.BHS, answer.Data = s.bhs, s.data
		r := answer.BHS.SCSIResponse()
		r.SetSNACKTag(0)
		snOf(&answer.Ref).setDataSN(r.ExpDataSN())
	}
	if t == nil {
		return s != nil, false
	}
	if rec.lastTag++; rec.lastTag == iscsi.ReservedTag {
		rec.lastTag = 1
	}
	t.tag, t.snackTag, t.answered = rec.lastTag, 0, false
	rec.tasks[itt], rec.tags[t.tag] = t, t
	rec.room -= t.bytes
	rec.pdus += len(t.pdus)
	// Other values are ignored (§11.5.6).
	if n := exp - t.first; exp != 0 && n <= uint32(len(t.pdus)) {
		rec.ackedData(t, exp)
	}
	if t.lost {
		return s != nil, len(t.pdus) > 0
	}
	if c.st == iscsi.ConnFull {
		rec.cutAnew(t)
	}
	return s != nil, false
}
