package target

import (
	"time"

	"softiser/internal/iscsi"
	spc "softiser/internal/scsi"
)

// async sends an Asynchronous Message (RFC 7143 §11.9); data is nil or SCSI
// sense data. It reports whether it did: an initiator without receive buffers
// is left alone.
func (c *conn) async(event iscsi.AsyncEvent, lun uint64, param3 uint16, sense []byte) bool {
	if c.state.get() != connFull || c.quiet.Load() {
		return false
	}
	c.mu.Lock()
	out := &c.out
	a := out.BHS.NewAsync(event)
	a.SetLUN(lun)
	a.SetParams(0, 0, param3)
	out.Data = nil
	if sense != nil {
		c.scratch = iscsi.AppendSense(c.scratch[:0], sense)
		out.Data = c.scratch
	}
	c.sendLocked(out, takeStatSN)
	c.mu.Unlock()
	c.dm.Push()
	return true
}

// askLogout asks the initiator to log out within d (AsyncEvent 1).
func (c *conn) askLogout(d time.Duration) bool {
	return c.async(iscsi.AsyncLogout, 0, uint16(min(max(int64(d/time.Second), 1), 0xffff)), nil)
}

// reportLUNs tells the initiator that the set of logical units has changed, so
// that it may look at once instead of at the unit attention of its next command
// (AsyncEvent 0 with the same sense).
func (c *conn) reportLUNs() {
	s := spc.Sense{Key: spc.KeyUnitAttention, ASC: spc.ASCLUNsChanged}
	c.async(iscsi.AsyncSCSI, 0, 0, s.AppendFixed(nil))
}
