package iscsi

import (
	"errors"
	"fmt"
)

// AHS types (RFC 7143 §11.2.2.1).
const (
	AHSExtendedCDB = 1 // the CDB's bytes from 16 on
	AHSBidiRead    = 2 // expected read length of a bidirectional command
)

// ErrAHS is wrapped by errors about additional header segments.
var ErrAHS = errors.New("iscsi: malformed additional header segment")

// ParseAHS calls f for each additional header segment. The body excludes the
// three header bytes, includes the AHS-specific byte, and is borrowed.
//
//	 +---------------+---------------+---------------+---------------+
//	0| AHSLength                     | AHSType       | AHS-Specific  |
//	 +---------------+---------------+---------------+---------------+
//	4/ AHS-Specific                                                  /
//	 +---------------+---------------+---------------+---------------+
//
// AHSLength counts the AHS-specific bytes, without padding.
func ParseAHS(ahs []byte, f func(typ uint8, body []byte) error) error {
	for len(ahs) > 0 {
		if len(ahs) < 4 {
			return fmt.Errorf("%w: %d trailing bytes", ErrAHS, len(ahs))
		}
		n := int(be.Uint16(ahs))
		if n == 0 || n > len(ahs)-3 {
			return fmt.Errorf("%w: AHSLength %d with %d bytes left", ErrAHS, n, len(ahs)-3)
		}
		if err := f(ahs[2]&0x3f, ahs[3:3+n]); err != nil {
			return err
		}
		next := 3 + n
		next += PadLen(next)
		if next > len(ahs) {
			return fmt.Errorf("%w: padding is missing", ErrAHS)
		}
		ahs = ahs[next:]
	}
	return nil
}

// AppendExtendedCDB appends the AHS for the bytes of a CDB beyond the sixteenth.
func AppendExtendedCDB(dst, cdb []byte) []byte {
	if len(cdb) <= 16 {
		return dst
	}
	rest := cdb[16:]
	start := len(dst)
	dst = be.AppendUint16(dst, uint16(len(rest)+1))
	dst = append(dst, AHSExtendedCDB, 0)
	dst = append(dst, rest...)
	return appendPad(dst, len(dst)-start)
}

// CommandAHS is what the additional header segments of a SCSI Command may say.
type CommandAHS struct {
	CDB      []byte // bytes 16 and up; borrowed
	BidiRead uint32
	HasBidi  bool
}

// ParseCommandAHS reads the segments that a SCSI Command may carry; each type
// may appear once (RFC 7143 §11.2.2).
func ParseCommandAHS(ahs []byte) (CommandAHS, error) {
	var c CommandAHS
	err := ParseAHS(ahs, func(typ uint8, body []byte) error {
		switch typ {
		case AHSExtendedCDB:
			if c.CDB != nil || len(body) < 2 {
				return fmt.Errorf("%w: extended CDB is empty or repeated", ErrAHS)
			}
			c.CDB = body[1:]
		case AHSBidiRead:
			if c.HasBidi || len(body) != 5 {
				return fmt.Errorf("%w: bidirectional read length has %d bytes or is repeated", ErrAHS, len(body))
			}
			c.HasBidi, c.BidiRead = true, be.Uint32(body[1:])
		default:
			return fmt.Errorf("%w: type %d", ErrAHS, typ)
		}
		return nil
	})
	return c, err
}

func appendPad(dst []byte, n int) []byte {
	for range PadLen(n) {
		dst = append(dst, 0)
	}
	return dst
}
