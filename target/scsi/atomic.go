package scsi

import "softiser/target/volume"

func offersAtomic(lu *LU) bool { return lu.vol.Journal.Offered() }

// cmdWriteAtomic is WRITE ATOMIC(16) (SBC-4 §5.48). Atomic boundaries are not
// offered.
func cmdWriteAtomic(t *Task) {
	switch {
	case t.CDB[10] != 0 || t.CDB[11] != 0:
		t.badCDB(10)
	case t.n > volume.MaxAtomicBytes:
		t.badCDB(12)
	case t.lu.vol.Forgetful():
		t.chunk.all(t.n, func(t *Task, p []byte) bool { return t.store(p, t.off) })
	default:
		t.chunk.all(t.n, writeAtomic)
	}
}

func writeAtomic(t *Task, p []byte) bool {
	if dir, err := t.lu.vol.Journal.Write(p, t.off, t.Stop()); err != nil {
		t.failErr(err, dir)
		return false
	}
	return true
}
