package iscsi

import (
	"time"

	"softiser/internal/iscsi"
	"softiser/internal/spc"
)

// async sends an Asynchronous Message (RFC 7143 §11.9) with its three parameters
// and, when there is any, SCSI sense data. It reports whether it did: an initiator
// without receive buffers is left alone.
func (o *sender) async(event iscsi.AsyncEvent, sense []byte, params ...uint16) bool {
	c := o.c
	if c.state.get() != connFull || c.quiet.Load() {
		return false
	}
	var p [3]uint16
	copy(p[:], params)
	o.mu.Lock()
	out := &o.pdu
	out.BHS.NewAsync(event).SetParams(p[0], p[1], p[2])
	out.Data = nil
	if sense != nil {
		o.scratch = iscsi.AppendSense(o.scratch[:0], sense)
		out.Data = o.scratch
	}
	o.sendLocked(out, takeStatSN)
	o.mu.Unlock()
	c.dm.Push()
	return true
}

// askLogout asks the initiator to log out within d (AsyncEvent 1).
func (o *sender) askLogout(d time.Duration) bool {
	return o.async(iscsi.AsyncLogout, nil, 0, 0, uint16(min(max(int64(d/time.Second), 1), 0xffff)))
}

// connectionDropped tells that another connection of the session has been dropped
// (AsyncEvent 2).
func (o *sender) connectionDropped(cid uint16) {
	o.async(iscsi.AsyncConnectionDrop, nil, cid, uint16(o.c.params.DefaultTime2Wait), uint16(o.c.params.DefaultTime2Retain))
}

// sessionDropped tells that every connection of the session is about to be dropped
// (AsyncEvent 3), and that nothing is kept for a reassignment: its tasks end, so
// that Time2Retain is 0. After Time2Wait the initiator may log in again.
func (o *sender) sessionDropped() {
	o.async(iscsi.AsyncSessionDrop, nil, 0, uint16(o.c.params.DefaultTime2Wait), 0)
}

// reportLUNs tells the initiator that the set of logical units has changed, so
// that it may look at once instead of at the unit attention of its next command
// (AsyncEvent 0 with the same sense).
func (o *sender) reportLUNs() {
	s := spc.Sense{Key: spc.KeyUnitAttention, ASC: spc.ASCLUNsChanged}
	o.async(iscsi.AsyncSCSI, s.AppendFixed(nil))
}
