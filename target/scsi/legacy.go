package scsi

import spc "softiser/internal/scsi"

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
	if r := t.lu.pr.Load(); len(r.regs) > 0 {
		if _, ok := r.regs[t.Nexus.regKey()]; ok {
			t.good()
		} else {
			t.status(spc.StatusReservationConflict)
		}
		return
	}
	// The conflict check in Execute has ruled out another holder; two
	// initiators that pass it together meet here.
	if !t.lu.legacy.CompareAndSwap(nil, t.Nexus) && t.lu.legacy.Load() != t.Nexus {
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
	t.lu.releaseLegacy(t.Nexus)
	t.good()
}

// releaseLegacy ends the reservation if n holds it, or whoever holds it when n
// is nil.
func (lu *LU) releaseLegacy(n *Nexus) {
	if n == nil {
		lu.legacy.Store(nil)
	} else {
		lu.legacy.CompareAndSwap(n, nil)
	}
}
