package scsi

import (
	"bytes"
	"errors"

	"softiser/internal/spc"

	"softiser/target/volume"
)

// Bits of byte 1 of a FORMAT UNIT CDB.
const (
	fmtLongList = 0x20
	fmtData     = 0x10
	fmtPInfo    = 0xC0
)

// cmdFormatUnit is FORMAT UNIT (SBC-3 §5.3): every block becomes zero and, where
// the volume can, deallocated, or gets the initialization pattern. A volume has
// no defects, so defect lists must be empty and certification means nothing;
// the block size is the volume's, and there is no protection information. See
// volume/rewrite.go for how it runs.
func cmdFormatUnit(t *Task) {
	b := t.CDB[1]
	if b&fmtPInfo != 0 {
		t.badCDB(1)
		return
	}
	if b&fmtData == 0 {
		if b != 0 {
			t.badCDB(1) // the other fields tell about a list that is not there
			return
		}
		beginRewrite(t, volume.Rewrite{Kind: volume.Format, Passes: 1}, false)
		return
	}
	// The CDB does not tell how long the list is: the transport does.
	long := b&fmtLongList != 0
	n := int(t.OutLen)
	if n > t.lu.geo().Info.BlockSize+12 {
		t.illegal(spc.ASCParameterListLength)
		return
	}
	t.data.fetchParam(n, func(t *Task) {
		f, err := spc.ParseFormatList(t.data.param(), long)
		if err != nil {
			t.illegal(spc.ASCParameterListLength)
			return
		}
		if field := t.lu.badFormat(&f, long); field >= 0 {
			t.badParam(field)
			return
		}
		beginRewrite(t, volume.Rewrite{Kind: volume.Format, Passes: 1, Pattern: bytes.Clone(f.Pattern)}, f.Flags&spc.FormatIMMED != 0)
	})
}

// badFormat returns the offset of the first field of the list that asks for what
// is not there, or -1.
func (lu *LU) badFormat(f *spc.FormatList, long bool) int {
	const options = spc.FormatDPRY | spc.FormatDCRT | spc.FormatSTPF | spc.FormatIP
	bs := lu.geo().Info.BlockSize
	switch {
	case f.Protection != 0:
		return 0
	case f.Flags&spc.FormatFOV == 0 && f.Flags&options != 0:
		return 1 // SBC-3 §5.3.2.2
	case f.Interval != 0:
		return 3
	case f.Defects != 0 && long:
		return 4
	case f.Defects != 0:
		return 2
	case f.PatternAt == 0:
		return -1
	case f.PatternType > 1:
		return f.PatternAt + 1
	case f.PatternType == 0 && len(f.Pattern) != 0, f.PatternType == 1 && (len(f.Pattern) == 0 || len(f.Pattern) > bs):
		return f.PatternAt + 2
	}
	return -1
}

// beginRewrite waits until the commands that are under way have ended, then starts o.
// With immed the status goes out as soon as it has begun.
func beginRewrite(t *Task, o volume.Rewrite, immed bool) {
	t.job = func(t *Task) { runRewrite(t, o, immed) }
	t.lu.vol.All(&t.Op)
}

// runRewrite runs o with every block held. A write protection or another rewrite may have come while
// it waited for the commands before it.
func runRewrite(t *Task, o volume.Rewrite, immed bool) {
	lu := t.lu
	if g := lu.gates() & t.op.gates &^ volume.Closed; g != 0 {
		t.refuse(g)
		return
	}
	end, err := lu.vol.Rewriter.Begin(o)
	switch {
	case errors.Is(err, volume.ErrRewriting):
		t.refuse(volume.Sanitizing) // whichever it is
		return
	case errors.Is(err, volume.ErrRestricted):
		t.badCDB(1)
		return
	case err != nil:
		t.failErr(err, volume.Writing)
		return
	}
	lu.selfTest.abort(testEnded)
	if immed {
		t.good()
		return
	}
	t.job = func(t *Task) { endRewrite(t, o.Kind, end.Err()) }
	if !lu.vol.Await(&t.Op, end) {
		t.job(t)
	}
}

// endRewrite ends a task that has waited for its rewrite.
func endRewrite(t *Task, kind volume.RewriteKind, err error) {
	switch {
	case err == nil:
		t.good()
	case kind == volume.Format:
		t.fail(spc.KeyMedium, spc.ASCFormatFailed)
	default:
		t.fail(spc.KeyMedium, spc.ASCSanitizeFailed)
	}
}

// offersRewrite reports whether the unit has SANITIZE and FORMAT UNIT.
func offersRewrite(lu *LU) bool { return lu.vol.Rewriter.Offered() }
