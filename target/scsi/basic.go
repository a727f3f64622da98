package scsi

import (
	"encoding/binary"

	"softiser/internal/spc"

	"softiser/target/volume"
)

// cmdTestUnitReady: the gates in the command table have said what there is to
// say.
func cmdTestUnitReady(t *Task) { t.good() }

// cmdRequestSense answers REQUEST SENSE (SPC-4 §6.39): a pending unit attention,
// an operation in progress, or nothing.
func cmdRequestSense(t *Task) {
	var s spc.Sense
	if a, ok := t.itl.take(); ok {
		s = spc.Sense{Key: spc.KeyUnitAttention, ASC: a}
	} else if g := t.lu.gates(); g&volume.NoMedium != 0 {
		s = spc.Sense{Key: spc.KeyNotReady, ASC: spc.ASCMediumNotPresent}
	} else if g&(volume.Sanitizing|volume.Formatting) != 0 {
		s = t.lu.rewriteSense()
	} else if g&volume.SanitizeFailed != 0 {
		s = spc.Sense{Key: spc.KeyMedium, ASC: spc.ASCSanitizeFailed}
	} else if g&volume.Corrupt != 0 {
		s = spc.Sense{Key: spc.KeyMedium, ASC: spc.ASCFormatCorrupted}
	} else {
		s = t.lu.selfTest.sense()
	}
	replySense(t, &s)
}

// replySense returns sense as parameter data, in the format asked for.
func replySense(t *Task, s *spc.Sense) {
	t.data.get(64)
	b := t.data.buf[:0]
	if t.CDB[1]&1 != 0 {
		b = s.AppendDescriptor(b)
	} else {
		b = s.AppendFixed(b)
	}
	t.reply(b, uint32(t.CDB[4]))
}

// reportLUNs answers REPORT LUNS through any LUN (SPC-4 §6.33). Select report 00h
// and 11h list logical units, 01h well-known ones, 02h both; 10h and 12h
// (administrative and subsidiary units) list none.
func reportLUNs(t *Task) {
	alloc := binary.BigEndian.Uint32(t.CDB[6:])
	if alloc < 16 {
		t.badCDB(6)
		return
	}
	sel := t.CDB[2]
	switch sel {
	case 0x00, 0x01, 0x02, 0x10, 0x11, 0x12:
	default:
		t.badCDB(2)
		return
	}
	// Before the list is made: what changes from here on is told once more.
	if t.itl != nil {
		t.itl.clear(spc.ASCLUNsChanged)
	}
	var luns []uint64
	switch sel {
	case 0x00, 0x02, 0x11:
		for _, i := range *t.Nexus.itls.Load() {
			luns = append(luns, spc.EncodeLUN(i.lun))
		}
		if sel == 0x02 {
			luns = append(luns, spc.WellKnownReportLUNs)
		}
	case 0x01:
		luns = append(luns, spc.WellKnownReportLUNs)
	}
	t.data.get(8 + 8*len(luns))
	t.reply(spc.AppendLUNList(t.data.buf[:0], luns), alloc)
}

// cmdSyncCache answers SYNCHRONIZE CACHE: what has been written is durable when
// its status goes out. With IMMED the status goes first, and a failure is
// reported by the next flush, as the volume stays poisoned.
func cmdSyncCache(t *Task) {
	if t.CDB[1]&spc.FlagImmed != 0 {
		t.lu.vol.FlushBehind()
		t.good()
		return
	}
	t.toWorker(func(t *Task) {
		var err error
		if t.io.Blocks == 0 && t.io.LBA == 0 {
			err = t.lu.disk.Flush()
		} else {
			n := t.n
			if t.io.Blocks == 0 {
				n = t.lu.geo().Info.Size - t.off
			}
			err = t.lu.disk.FlushRange(t.off, n)
		}
		if err != nil {
			t.failErr(err, volume.Writing)
			return
		}
		t.committed()
	})
}

// cmdStartStop answers START STOP UNIT (SBC-3 §5.25). Power conditions are
// accepted, whatever they are, and mean nothing to a volume; LOEJ ejects and
// loads removable media, unless an initiator prevents it.
func cmdStartStop(t *Task) {
	lu, b := t.lu, t.CDB[4]
	power, noflush, loej, start := b>>4, b&4 != 0, b&2 != 0, b&1 != 0
	switch {
	case power != 0 || !loej:
		// Stopping loses nothing: only a flush, unless NO_FLUSH.
		if power == 0 && !start && !noflush && lu.disk != nil && lu.gates()&volume.NoMedium == 0 {
			t.toWorker(flushAndEnd)
			return
		}
		t.good()
	case !lu.cfg.Removable:
		t.badCDB(4)
	case lu.removalPrevented(): // loading, too: libiscsi's suite has it so
		t.illegal(spc.ASCRemovalPrevented)
	case start:
		if lu.disk == nil {
			t.fail(spc.KeyNotReady, spc.ASCMediumNotPresent)
			return
		}
		if lu.gates()&volume.NoMedium != 0 {
			lu.vol.SetGate(volume.NoMedium, false)
			lu.everywhere(spc.ASCMediumMayHaveChanged, func(n *Nexus) bool { return n != t.Nexus })
		}
		t.good()
	default:
		if lu.gates()&volume.NoMedium != 0 || lu.disk == nil {
			t.good()
			return
		}
		t.toWorker(func(t *Task) {
			if err := t.lu.disk.Flush(); err != nil {
				t.failErr(err, volume.Writing)
				return
			}
			t.lu.vol.SetGate(volume.NoMedium, true)
			t.good()
		})
	}
}

func flushAndEnd(t *Task) {
	if err := t.lu.disk.Flush(); err != nil {
		t.failErr(err, volume.Writing)
		return
	}
	t.committed()
}

// cmdPreventAllow answers PREVENT ALLOW MEDIUM REMOVAL, which is kept for each
// nexus.
func cmdPreventAllow(t *Task) {
	lu := t.lu
	switch t.CDB[4] & 3 {
	case 0:
		lu.allowRemoval(t.Nexus)
	case 1:
		lu.preventRemoval(t.Nexus)
	default:
		t.badCDB(4)
		return
	}
	t.good()
}
