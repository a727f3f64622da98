package scsi

import (
	"bytes"

	spc "softiser/internal/scsi"
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
// operation.go for how it runs.
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
		t.begin(operation{Kind: opFormat, Passes: 1}, false)
		return
	}
	// The CDB does not tell how long the list is: the transport does.
	long := b&fmtLongList != 0
	n := int(t.OutLen)
	if n > t.lu.geo().info.BlockSize+12 {
		t.illegal(spc.ASCParameterListLength)
		return
	}
	t.fetchParam(n, func(t *Task) {
		f, err := spc.ParseFormatList(t.param(), long)
		if err != nil {
			t.illegal(spc.ASCParameterListLength)
			return
		}
		if field := t.lu.badFormat(&f, long); field >= 0 {
			t.badParam(field)
			return
		}
		t.begin(operation{Kind: opFormat, Passes: 1, Pattern: bytes.Clone(f.Pattern)}, f.Flags&spc.FormatIMMED != 0)
	})
}

// badFormat returns the offset of the first field of the list that asks for what
// is not there, or -1.
func (lu *LU) badFormat(f *spc.FormatList, long bool) int {
	const options = spc.FormatDPRY | spc.FormatDCRT | spc.FormatSTPF | spc.FormatIP
	bs := lu.geo().info.BlockSize
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
