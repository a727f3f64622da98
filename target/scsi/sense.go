package scsi

import (
	"errors"

	"softiser/internal/spc"

	"softiser/blockdev"
	"softiser/target/volume"
)

// good ends the task with GOOD.
func (t *Task) good() {
	t.Status = spc.StatusGood
	t.end()
}

// committed is good for a task whose changes are the content of the volume, or that has flushed it.
func (t *Task) committed() {
	t.Op.Stamp(volume.Committed)
	t.good()
}

// status ends the task with a status that has no sense data.
func (t *Task) status(s Status) {
	t.Status = s
	t.end()
}

// fail ends the task with CHECK CONDITION.
func (t *Task) fail(k spc.Key, a spc.ASC) {
	s := spc.Sense{Key: k, ASC: a}
	t.check(&s)
}

// illegal ends the task with ILLEGAL REQUEST.
func (t *Task) illegal(a spc.ASC) { t.fail(spc.KeyIllegalRequest, a) }

// badCDB ends the task with INVALID FIELD IN CDB and a pointer to the field.
func (t *Task) badCDB(field int) {
	s := spc.Sense{Key: spc.KeyIllegalRequest, ASC: spc.ASCInvalidFieldInCDB, FieldValid: true, InCDB: true, Field: uint16(field)}
	t.check(&s)
}

// badParam ends the task with INVALID FIELD IN PARAMETER LIST and a pointer to
// the field.
func (t *Task) badParam(field int) {
	s := spc.Sense{Key: spc.KeyIllegalRequest, ASC: spc.ASCInvalidFieldInParam, FieldValid: true, Field: uint16(field)}
	t.check(&s)
}

// check ends the task with CHECK CONDITION and the given sense, in the format
// that the control mode page of its logical unit asks for.
func (t *Task) check(s *spc.Sense) {
	t.setSense(s)
	t.end()
}

func (t *Task) setSense(s *spc.Sense) {
	t.Status = spc.StatusCheckCondition
	var b []byte
	if t.lu != nil && t.lu.modes.dsense.Load() {
		b = s.AppendDescriptor(t.Sense[:0])
	} else {
		b = s.AppendFixed(t.Sense[:0])
	}
	t.SenseLen = len(b)
}

// verifies reports whether the command reads only to find errors.
func (t *Task) verifies() bool {
	switch t.op.op {
	case spc.OpVerify10, spc.OpVerify12, spc.OpVerify16, spc.OpWriteVerify10, spc.OpWriteVerify12, spc.OpWriteVerify16:
		return true
	}
	return false
}

// failErr ends the task with the sense that tells err.
func (t *Task) failErr(err error, dir volume.Direction) {
	if t.Aborted() { // the error may come from giving it up, and is then no fault of the volume
		t.end()
		return
	}
	if dir == volume.Reading && t.verifies() {
		dir = volume.Verifying
	}
	t.lu.vol.Counters.CountError(err, dir)
	k, a := senseOf(err, dir)
	marked, isMarked := errors.AsType[*volume.MarkedError](err)
	if told := t.dev.cfg.Fault; told != nil && t.lu != nil && !isMarked && (k == spc.KeyMedium || k == spc.KeyHardware || a == spc.ASCSpaceAllocFailed) {
		told(t.lu.lun, err)
	}
	s := spc.Sense{Key: k, ASC: a}
	if k == spc.KeyMedium && t.op != nil && t.op.has(fIO) {
		// SBC-3 §4.18: the information field tells the first block in error; the
		// first one of the failed chunk is what is known.
		first := t.off + t.chunk.done
		if isMarked {
			first = marked.Off
		}
		s.InfoValid, s.Info = true, uint64(first)>>t.lu.geo().Shift
	}
	t.check(&s)
}

// senseOf is the one table from errors of volumes to sense.
func senseOf(err error, dir volume.Direction) (spc.Key, spc.ASC) {
	if _, marked := errors.AsType[*volume.MarkedError](err); marked {
		return spc.KeyMedium, spc.ASCMarkedBad
	}
	switch {
	case errors.Is(err, blockdev.ErrPoisoned): // whatever has caused it
		return spc.KeyMedium, spc.ASCWriteError
	case errors.Is(err, blockdev.ErrOutOfRange): // resized since the check
		return spc.KeyIllegalRequest, spc.ASCLBAOutOfRange
	case errors.Is(err, blockdev.ErrReadOnly):
		return spc.KeyDataProtect, spc.ASCWriteProtected
	case errors.Is(err, blockdev.ErrNoSpace):
		return spc.KeyDataProtect, spc.ASCSpaceAllocFailed
	case errors.Is(err, blockdev.ErrMedium) && dir != volume.Writing:
		return spc.KeyMedium, spc.ASCUnrecoveredRead
	case errors.Is(err, blockdev.ErrMedium):
		return spc.KeyMedium, spc.ASCWriteError
	case errors.Is(err, volume.ErrAborted), errors.Is(err, blockdev.ErrStopped):
		return spc.KeyAborted, 0
	case errors.Is(err, volume.ErrFenced):
		return spc.KeyCopyAborted, spc.ASCCopyTargetGone
	case errors.Is(err, blockdev.ErrInactive): // the access state changes
		return spc.KeyNotReady, spc.ASCAccessTransition
	case errors.Is(err, volume.ErrNotReady):
		return spc.KeyNotReady, spc.ASCNotReady
	case errors.Is(err, blockdev.ErrClosed), errors.Is(err, blockdev.ErrInUse):
		return spc.KeyNotReady, spc.ASCCommFailure
	case errors.Is(err, blockdev.ErrNotSupported):
		return spc.KeyIllegalRequest, spc.ASCInvalidFieldInCDB
	}
	return spc.KeyHardware, spc.ASCInternalFailure
}
