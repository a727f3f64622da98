package scsi

import (
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
