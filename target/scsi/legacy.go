package scsi

import "softiser/internal/spc"

// RESERVE and RELEASE of SPC-2, kept because cluster software of that age is
// still about. The reservation belongs to one nexus and ends with it, with a
// reset, or with RELEASE. The obsolete third-party and extent forms are refused.

func cmdReserve(t *Task) {
	if t.CDB[1]&0x1F != 0 {
		t.badCDB(1)
		return
	}
	// With registrations there is CRH (SPC-4 §5.12.3): a registrant's RESERVE does
	// nothing and is GOOD, anybody else's is a conflict.
	if r := t.lu.vol.Reservations(); r.Len() > 0 {
		if _, ok := r.Find(t.Nexus.client.ID); ok {
			t.good()
		} else {
			t.status(spc.StatusReservationConflict)
		}
		return
	}
	// The conflict check in Execute has ruled out another holder; two
	// initiators that pass it together meet here.
	if !t.lu.vol.Seize(&t.Nexus.client) {
		t.status(spc.StatusReservationConflict)
		return
	}
	t.good()
}

// cmdRelease: a RELEASE by someone who is not the holder does nothing, and that
// is GOOD.
func cmdRelease(t *Task) {
	if t.CDB[1]&0x1F != 0 {
		t.badCDB(1)
		return
	}
	t.lu.vol.Unseize(&t.Nexus.client)
	t.good()
}

// conflicts reports whether a reservation of either kind keeps t's nexus from
// the command.
func (lu *LU) conflicts(t *Task, c *command) bool { return lu.vol.Reserved() && lu.forbids(t, c) }

func (lu *LU) forbids(t *Task, c *command) bool {
	if takesNothingAway(t.CDB) {
		return false
	}
	me := &t.Nexus.client
	if h := lu.vol.Seizer(); h != nil {
		return h != me && !c.has(fNoUA) && c.op != spc.OpRelease6 && c.op != spc.OpRelease10
	}
	return lu.vol.Forbids(me, c.access)
}

// takesNothingAway tells the two commands that pass every reservation in one of
// their forms: PREVENT ALLOW MEDIUM REMOVAL with PREVENT 0 (SPC-4 table 66) and
// START STOP UNIT with START 1 and POWER CONDITION 0 (SBC-3 table 13). Whoever
// has prevented removal before another initiator reserved can so allow it again.
func takesNothingAway(cdb []byte) bool {
	switch spc.Opcode(cdb[0]) {
	case spc.OpPreventAllow:
		return cdb[4]&3 == 0
	case spc.OpStartStopUnit:
		return cdb[4]&0xF1 == 1
	}
	return false
}
