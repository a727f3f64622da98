package scsi

import (
	"bytes"
	"encoding/binary"
	"errors"

	"softiser/target/volume"
)

// SANITIZE (SBC-3 §5.24) changes every block so that its old content cannot be
// read back; see volume/rewrite.go. Cryptographic erase is not there: the target
// does not encrypt, so there is no key to change.

// sanitizeCDB checks what all service actions have in common.
func sanitizeCDB(t *Task) (n int, ok bool) {
	for i, mask := range []byte{1: 0x40, 2: 0xFF, 3: 0xFF, 4: 0xFF, 5: 0xFF, 6: 0xFF} {
		if t.CDB[i]&mask != 0 {
			t.badCDB(i)
			return 0, false
		}
	}
	return int(binary.BigEndian.Uint16(t.CDB[7:])), true
}

// beginSanitize begins o with the IMMED and AUSE bits of the CDB.
func beginSanitize(t *Task, o volume.Rewrite) {
	o.Unrestricted = t.CDB[1]&0x20 != 0
	beginRewrite(t, o, t.CDB[1]&0x80 != 0)
}

// cmdSanitizeOverwrite: the parameter list tells passes and pattern:
//
//	+--+-----------------------------------------------+
//	| 0| INVERT(80h) TEST(60h) overwrite count (5)     |
//	| 1| reserved                                      |
//	| 2| initialization pattern length (2)             |
//	| 4| initialization pattern                        |
//	+--+-----------------------------------------------+
func cmdSanitizeOverwrite(t *Task) {
	n, ok := sanitizeCDB(t)
	if !ok {
		return
	}
	bs := t.lu.geo().Info.BlockSize
	if n < 5 || n > bs+4 {
		t.badCDB(7)
		return
	}
	t.data.fetchParam(n, func(t *Task) {
		p := t.data.param()
		k := int(binary.BigEndian.Uint16(p[2:]))
		// The values are wrong, not the list's form; the test suites of initiators
		// expect INVALID FIELD IN CDB for them.
		if p[0]&0x1F == 0 || p[0]&0x60 != 0 || k == 0 || k > len(p)-4 {
			t.badCDB(7)
			return
		}
		beginSanitize(t, volume.Rewrite{Kind: volume.Overwrite, Passes: int(p[0] & 0x1F), Invert: p[0]&0x80 != 0, Pattern: bytes.Clone(p[4 : 4+k])})
	})
}

// erases reports whether the unit has BLOCK ERASE.
func erases(lu *LU) bool { return lu.vol.Rewriter.OffersErase() }

func cmdSanitizeErase(t *Task) {
	n, ok := sanitizeCDB(t)
	if !ok {
		return
	}
	if n != 0 {
		t.badCDB(7)
		return
	}
	beginSanitize(t, volume.Rewrite{Kind: volume.Erase, Passes: 1})
}

// cmdSanitizeExit ends the failure mode, if the failed SANITIZE allowed that
// (AUSE).
func cmdSanitizeExit(t *Task) {
	n, ok := sanitizeCDB(t)
	if !ok {
		return
	}
	switch failed := t.lu.gates()&volume.SanitizeFailed != 0; {
	case n != 0:
		t.badCDB(7)
	case !failed:
		t.good()
	case !t.lu.vol.Rewriter.MayExitFailure():
		t.badCDB(1)
	default:
		t.toWorker(func(t *Task) {
			switch err := t.lu.vol.Rewriter.ExitFailure(); {
			case err == nil:
				t.good()
			case errors.Is(err, volume.ErrRewriting): // begun since
				t.refuse(volume.Sanitizing)
			default:
				t.failErr(err, volume.Writing)
			}
		})
	}
}
