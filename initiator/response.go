package initiator

import (
	"errors"
	"fmt"
	"time"

	"softiser/blockdev"
	"softiser/initiator/blockio"
	"softiser/internal/iscsi"
	"softiser/internal/spc"
)

// fate is what happens to a command that the target has answered.
type fate uint8

const (
	fateDone  fate = iota // ends, with or without an error
	fateAgain             // is sent again at once: the target has not carried it out
	fateLater             // is sent again after a while
)

// Limits of repeating a command that the target answers with the same obstacle.
const (
	maxAgain     = 8 // several unit attentions may be pending, one comes at a time
	firstBackoff = 10 * time.Millisecond
)

// scsiResponse ends a command, or sends it again. The caller holds s.mu.
func (c *conn) scsiResponse(p *iscsi.PDU) {
	s := c.s
	t := s.tasks.find(p.BHS.ITT())
	if t == nil || t.kind != kindCommand || t.state != taskSent && t.state != taskAborting {
		c.violation("a SCSI Response for the unknown task tag %#08x", p.BHS.ITT())
		return
	}
	resp := p.BHS.SCSIResponse()
	resid, err := t.residual(resp)
	if err != nil {
		c.violation("%v", err)
		return
	}
	if c.countsIn && t.inLen > t.bufs.InLen {
		// Where the transport counts the data, a GOOD without all of it is not believed.
		resid = max(resid, t.inLen-t.bufs.InLen)
	}
	c.proved = true
	s.stats.Completed++
	if resp.Response() == iscsi.ResponseCompleted && resp.Status() == byte(spc.StatusGood) {
		s.carriedOut(t, resp, resid)
		return
	}
	r := t.req
	what, err := judge{s, t}.response(resp, p.Data)
	switch {
	case what == fateDone && err == nil: // CONDITION MET, RECOVERED ERROR or COMPLETED
		s.carriedOut(t, resp, resid)
		return
	case t.state == taskAborting:
		// The command ended by itself before the abort reached it.
	case what == fateAgain && t.retries < maxAgain && r.cancel == nil:
		c.again(t, err)
		return
	case what == fateLater && r.cancel == nil && s.wait.delay(t):
		return
	}
	r.Status = resp.Status()
	r.Residual += int64(resid)
	s.endTask(t, err)
}

// carriedOut ends a command that the target has carried out; resid bytes were not transferred.
// The caller holds s.mu.
func (s *Session) carriedOut(t *task, resp iscsi.SCSIResponse, resid uint32) {
	r := t.req
	r.Residual += int64(resid)
	if t.outLen > 0 {
		s.stats.WriteBytes += uint64(t.outLen - resid)
	} else if t.inLen > 0 {
		s.stats.ReadBytes += uint64(t.inLen - resid)
	}
	var err error
	switch asked := t.inLen | t.outLen; { // one of them is 0
	case r.Op == OpCDB: // for commands of callers, residuals are for the caller to judge
	case resp.ResidualFlags()&iscsi.ResidualOverflow != 0:
		err = fmt.Errorf("%w: %d more than %d", ErrOverflow, resp.Residual(), asked)
	case resid > 0:
		err = fmt.Errorf("%w: %d of %d", ErrShort, asked-resid, asked)
	}
	s.endTask(t, err)
}

// again has a command sent again that the target has not carried out because of err. The caller
// holds s.mu.
func (c *conn) again(t *task, err error) {
	s := c.s
	t.retries++
	s.stats.Retries++
	s.wait.pushResend(t)
	if otherUnit(err) && s.units.opened(t.lun) {
		// Before anything is sent again, recovery has to check that the LUN is still the
		// same volume.
		c.doom(fmt.Errorf("the target says that another unit may be behind the LUN: %w", err))
	}
}

// otherUnit reports whether err is a unit attention that says that the LUN may be another
// volume now (INQUIRY DATA HAS CHANGED, 3F/03).
func otherUnit(err error) bool {
	var se *spc.SenseError
	return errors.As(err, &se) && se.Sense.Key == spc.KeyUnitAttention && se.Sense.ASC == spc.ASCInquiryChanged
}

// residual checks the residual count of a response against what the command
// asked for. It returns how many bytes were not transferred.
func (t *task) residual(r iscsi.SCSIResponse) (uint32, error) {
	want := t.inLen | t.outLen // one of them is 0
	switch f := r.ResidualFlags() & (iscsi.ResidualOverflow | iscsi.ResidualUnderflow); {
	case f == 0, f == iscsi.ResidualOverflow:
		return 0, nil // the command wanted to move more than we offered
	case f == iscsi.ResidualUnderflow && r.Residual() <= want:
		return r.Residual(), nil
	}
	return 0, fmt.Errorf("a SCSI Response with flags %#02x and residual %d for a command of %d bytes", r.BHS[1], r.Residual(), want)
}

// judge says what becomes of a command whose status is not GOOD. The caller holds the
// session's mutex.
type judge struct {
	s *Session
	t *task
}

// response judges by the whole response.
func (j judge) response(r iscsi.SCSIResponse, data []byte) (fate, error) {
	op := j.t.opcode()
	if r.Response() != iscsi.ResponseCompleted {
		return fateDone, fmt.Errorf("initiator: %v: the target failed to carry it out (iSCSI response %#02x)", op, r.Response())
	}
	st := spc.Status(r.Status())
	sense, _, _ := iscsi.ParseSense(data) // what cannot be read is reported as NO SENSE
	err := spc.NewSenseError(op, st, sense)
	if j.t.req.once {
		var se *spc.SenseError
		if errors.As(err, &se) && se.Sense.Key == spc.KeyUnitAttention {
			j.s.units.attention(j.t.lun, se.Sense) // the caller may repeat the command; the session must hear of the attention
		}
		return fateDone, err
	}
	switch st {
	case spc.StatusConditionMet:
		return fateDone, nil
	case spc.StatusBusy, spc.StatusTaskSetFull:
		return fateLater, fmt.Errorf("%w: %w", ErrBusy, err)
	case spc.StatusReservationConflict:
		return fateDone, fmt.Errorf("%w: %w", ErrReservation, err)
	case spc.StatusTaskAborted:
		if j.t.req.idempotent() {
			return fateAgain, err
		}
		return fateDone, fmt.Errorf("%w: %w", ErrOutcomeUnknown, err)
	case spc.StatusCheckCondition:
		var se *spc.SenseError
		if errors.As(err, &se) {
			return j.sense(se)
		}
	}
	return fateDone, err
}

// sense judges a command that ended with CHECK CONDITION.
func (j judge) sense(e *spc.SenseError) (fate, error) {
	if e.Sense.Deferred {
		return j.deferred(e)
	}
	switch e.Sense.Key {
	case spc.KeyUnitAttention:
		// The command has not been carried out; each one reports one condition.
		j.s.units.attention(j.t.lun, e.Sense)
		return fateAgain, e
	case spc.KeyAborted:
		if j.t.req.idempotent() {
			return fateAgain, e
		}
	case spc.KeyNotReady:
		switch e.Sense.ASC {
		case spc.ASCAccessTransition, spc.ASCAccessStandby, spc.ASCAccessUnavailable, spc.ASCAccessOffline:
			if j.s.cfg.Path {
				return fateDone, fmt.Errorf("%w: %w", blockio.ErrInaccessible, e)
			}
			if e.Sense.ASC == spc.ASCAccessTransition {
				return fateLater, e
			}
		case spc.ASCBecomingReady:
			return fateLater, e
		}
	case spc.KeyRecovered, spc.KeyCompleted:
		return fateDone, nil // carried out, with something to tell
	case spc.KeyIllegalRequest:
		if e.Sense.ASC == spc.ASCInvalidOpcode && j.t.opcode() == spc.OpWriteSame16 {
			j.t.req.lun.withoutSame() // zeroes are written from now on
		}
	}
	return fateDone, deviceError(e)
}

// deferred judges a command that ended with a deferred error, which is about an earlier command
// that had been acknowledged. The command itself has not been carried out (SPC-4 §4.5.5),
// whatever the sense key is.
func (j judge) deferred(e *spc.SenseError) (fate, error) {
	switch e.Sense.Key {
	case spc.KeyNoSense, spc.KeyRecovered, spc.KeyCompleted:
		return fateAgain, e
	case spc.KeyUnitAttention:
		j.s.units.attention(j.t.lun, e.Sense)
		return fateAgain, e
	}
	// The target has lost something that it had acknowledged. If that may be a write that was
	// not flushed yet, the next flush reports it; otherwise this command fails.
	for _, u := range j.s.units.list {
		if l := u.lun; l.wire == j.t.lun && l.epoch.Load().Lost() {
			j.s.caches.lost(l, fmt.Sprintf("the target could not keep what it had acknowledged: %v", e.Sense))
			return fateAgain, e
		}
	}
	return fateDone, deviceError(e)
}

// deviceError wraps e with the blockdev error that its sense condition corresponds to, so that a
// LUN fails with the same errors as any other blockdev.Device.
func deviceError(e *spc.SenseError) error {
	kind := error(nil)
	switch e.Sense.Key {
	case spc.KeyMedium, spc.KeyHardware:
		kind = blockdev.ErrMedium
	case spc.KeyDataProtect:
		kind = blockdev.ErrReadOnly
		if e.Sense.ASC == spc.ASCSpaceAllocFailed {
			kind = blockdev.ErrNoSpace
		}
	case spc.KeyIllegalRequest:
		switch e.Sense.ASC {
		case spc.ASCLBAOutOfRange:
			kind = blockdev.ErrOutOfRange
		case spc.ASCInvalidOpcode:
			kind = blockdev.ErrNotSupported
		}
	}
	if kind == nil {
		return e
	}
	return fmt.Errorf("%w: %w", kind, e)
}
