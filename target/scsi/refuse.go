package scsi

import (
	"softiser/blockdev"
	"softiser/internal/spc"
	"softiser/target/volume"
)

// refuse ends a task that the unit's condition does not allow.
func (t *Task) refuse(g volume.Gate) {
	switch {
	case g&volume.Closed != 0:
		asc := spc.ASCAccessTransition
		if AccessState(t.itl.path.state.Load()) == Standby {
			asc = spc.ASCAccessStandby
		}
		t.fail(spc.KeyNotReady, asc)
	case g&volume.NoMedium != 0:
		t.fail(spc.KeyNotReady, spc.ASCMediumNotPresent)
	case g&(volume.Sanitizing|volume.Formatting) != 0:
		s := t.lu.rewriteSense()
		t.check(&s)
	case g&volume.Testing != 0:
		s := t.lu.selfTest.sense()
		if s.Key == spc.KeyNoSense { // it has ended meanwhile, and the command has not been carried out
			s = spc.Sense{Key: spc.KeyNotReady, ASC: spc.ASCSelfTestInProgress}
		}
		t.check(&s)
	case g&volume.Corrupt != 0:
		t.fail(spc.KeyMedium, spc.ASCFormatCorrupted)
	case g&volume.SanitizeFailed != 0:
		t.fail(spc.KeyMedium, spc.ASCSanitizeFailed)
	case g&volume.WriteProtected != 0:
		t.fail(spc.KeyDataProtect, spc.ASCWriteProtectedSW)
	default:
		t.fail(spc.KeyDataProtect, spc.ASCWriteProtected)
	}
}

// enabledStill is enable for a task that has waited for its initiator's data and has its blocks only now:
// a rewrite of the medium, a write protection and an atomic write that could not be undone have not
// waited for it. Commands that have begun go on when the unit moves to another node. When it reports
// false it has ended the task. It waits for storage.
func (t *Task) enabledStill() bool {
	if g := t.lu.gates() & t.op.gates &^ volume.Closed; g != 0 {
		t.refuse(g)
		return false
	}
	if err := t.lu.vol.BeforeChange(blockdev.Wait, t.Stop()); err != nil {
		t.failErr(err, volume.Writing)
		return false
	}
	return true
}

// sense tells that a test runs, and how far it is; no sense if none does.
func (s *selfTest) sense() spc.Sense {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.running {
		return spc.Sense{}
	}
	x := spc.Sense{Key: spc.KeyNotReady, ASC: spc.ASCSelfTestInProgress, ProgressValid: true}
	if s.total > 0 {
		x.Progress = uint16(min(uint64(s.done)*65536/uint64(s.total), 65535))
	}
	return x
}
