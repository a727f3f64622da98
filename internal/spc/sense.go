package spc

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Key is the sense key: the kind of condition (SPC-4 §4.5.6).
type Key byte

// Sense keys.
const (
	KeyNoSense        Key = 0x0
	KeyRecovered      Key = 0x1
	KeyNotReady       Key = 0x2
	KeyMedium         Key = 0x3
	KeyHardware       Key = 0x4
	KeyIllegalRequest Key = 0x5
	KeyUnitAttention  Key = 0x6
	KeyDataProtect    Key = 0x7
	KeyBlankCheck     Key = 0x8
	KeyVendor         Key = 0x9
	KeyCopyAborted    Key = 0xA
	KeyAborted        Key = 0xB
	KeyVolumeOverflow Key = 0xD
	KeyMiscompare     Key = 0xE
	KeyCompleted      Key = 0xF
)

var keyNames = [16]string{
	"NO SENSE", "RECOVERED ERROR", "NOT READY", "MEDIUM ERROR", "HARDWARE ERROR", "ILLEGAL REQUEST",
	"UNIT ATTENTION", "DATA PROTECT", "BLANK CHECK", "VENDOR SPECIFIC", "COPY ABORTED", "ABORTED COMMAND",
	"sense key Ch", "VOLUME OVERFLOW", "MISCOMPARE", "COMPLETED",
}

// String returns the key as SPC names it.
func (k Key) String() string { return keyNames[k&0xF] }

// Sense is one sense condition. The zero value is NO SENSE.
type Sense struct {
	Key      Key
	ASC      ASC
	Deferred bool // about an earlier command

	InfoValid bool
	Info      uint64 // LBA or byte offset, as the command defines

	// SpecificValid says that Specific is what the command calls its command-specific information. Fixed format does not tell it from
	// none when it is 0.
	SpecificValid bool
	Specific      uint64

	// FieldValid says that Field and Bit point at the offending byte of the
	// CDB (InCDB) or of the parameter list.
	FieldValid bool
	InCDB      bool
	BitValid   bool
	Bit        byte
	Field      uint16

	// ProgressValid: Progress/65536 of an operation in progress is done.
	ProgressValid bool
	Progress      uint16
}

// FixedSenseLen is the length of the sense data that AppendFixed makes.
const FixedSenseLen = 18

// AppendFixed adds s in fixed format (SPC-4 §4.5.3):
//
//	+--+-----------------------------------------------+
//	| 0| VALID(80h) | response code 70h/71h            |
//	| 2| sense key                                     |
//	| 3| information (4 bytes)                         |
//	| 7| additional sense length                       |
//	| 8| command-specific information (4 bytes)        |
//	|12| ASC, ASCQ                                     |
//	|15| SKSV(80h) C/D(40h) BPV(08h) bit | field (2)   |
//	+--+-----------------------------------------------+
//
// Information that needs more than 32 bits is left out, VALID clear.
func (s *Sense) AppendFixed(dst []byte) []byte {
	i := len(dst)
	dst = append(dst, make([]byte, FixedSenseLen)...)
	b := dst[i:]
	b[0] = 0x70
	if s.Deferred {
		b[0] = 0x71
	}
	if s.InfoValid && s.Info <= 0xFFFFFFFF {
		b[0] |= 0x80
		binary.BigEndian.PutUint32(b[3:], uint32(s.Info))
	}
	b[2] = byte(s.Key)
	b[7] = FixedSenseLen - 8
	if s.SpecificValid && s.Specific <= 0xFFFFFFFF {
		binary.BigEndian.PutUint32(b[8:], uint32(s.Specific))
	}
	binary.BigEndian.PutUint16(b[12:], uint16(s.ASC))
	s.putKeySpecific(b[15:18])
	return dst
}

// AppendDescriptor adds s in descriptor format (SPC-4 §4.5.2): an 8-byte
// header, then information, command-specific and sense-key-specific descriptors as valid.
func (s *Sense) AppendDescriptor(dst []byte) []byte {
	i := len(dst)
	code := byte(0x72)
	if s.Deferred {
		code = 0x73
	}
	dst = append(dst, code, byte(s.Key), byte(s.ASC>>8), byte(s.ASC), 0, 0, 0, 0)
	if s.InfoValid {
		dst = append(dst, 0x00, 0x0A, 0x80, 0)
		dst = binary.BigEndian.AppendUint64(dst, s.Info)
	}
	if s.SpecificValid {
		dst = append(dst, 0x01, 0x0A, 0, 0)
		dst = binary.BigEndian.AppendUint64(dst, s.Specific)
	}
	if s.FieldValid || s.ProgressValid {
		dst = append(dst, 0x02, 0x06, 0, 0, 0, 0, 0, 0)
		s.putKeySpecific(dst[len(dst)-4 : len(dst)-1])
	}
	dst[i+7] = byte(len(dst) - i - 8)
	return dst
}

func (s *Sense) putKeySpecific(b []byte) {
	switch {
	case s.FieldValid:
		b[0] = 0x80
		if s.InCDB {
			b[0] |= 0x40
		}
		if s.BitValid {
			b[0] |= 0x08 | s.Bit&7
		}
		binary.BigEndian.PutUint16(b[1:], s.Field)
	case s.ProgressValid:
		b[0] = 0x80
		binary.BigEndian.PutUint16(b[1:], s.Progress)
	}
}

func (s *Sense) parseKeySpecific(b []byte) {
	if b[0]&0x80 == 0 {
		return
	}
	switch s.Key {
	case KeyIllegalRequest:
		s.FieldValid = true
		s.InCDB = b[0]&0x40 != 0
		if s.BitValid = b[0]&0x08 != 0; s.BitValid {
			s.Bit = b[0] & 7
		}
		s.Field = binary.BigEndian.Uint16(b[1:])
	case KeyNoSense, KeyNotReady:
		s.ProgressValid = true
		s.Progress = binary.BigEndian.Uint16(b[1:])
	}
}

var errShortSense = errors.New("scsi: sense data is shorter than its format needs")

// ParseSense decodes fixed or descriptor format. Fixed format may be cut by an
// allocation length: fields that did not arrive are zero.
func ParseSense(b []byte) (Sense, error) {
	var s Sense
	if len(b) < 3 {
		return s, errShortSense
	}
	switch code := b[0] & 0x7F; code {
	case 0x70, 0x71:
		s.Deferred = code == 0x71
		s.Key = Key(b[2] & 0xF)
		if len(b) >= 7 && b[0]&0x80 != 0 {
			s.InfoValid = true
			s.Info = uint64(binary.BigEndian.Uint32(b[3:]))
		}
		n := len(b)
		if n >= 8 && 8+int(b[7]) < n {
			n = 8 + int(b[7])
		}
		if n >= 12 {
			s.Specific = uint64(binary.BigEndian.Uint32(b[8:]))
			s.SpecificValid = s.Specific != 0
		}
		if n >= 14 {
			s.ASC = ASC(binary.BigEndian.Uint16(b[12:]))
		}
		if n >= 18 {
			s.parseKeySpecific(b[15:18])
		}
		return s, nil
	case 0x72, 0x73:
		if len(b) < 8 {
			return s, errShortSense
		}
		s.Deferred = code == 0x73
		s.Key = Key(b[1] & 0xF)
		s.ASC = ASC(binary.BigEndian.Uint16(b[2:]))
		d := b[8:]
		if n := int(b[7]); n < len(d) {
			d = d[:n]
		}
		for len(d) >= 2 {
			n := 2 + int(d[1])
			if n > len(d) {
				break
			}
			switch {
			case d[0] == 0x00 && n >= 12 && d[2]&0x80 != 0:
				s.InfoValid = true
				s.Info = binary.BigEndian.Uint64(d[4:])
			case d[0] == 0x01 && n >= 12:
				s.SpecificValid = true
				s.Specific = binary.BigEndian.Uint64(d[4:])
			case d[0] == 0x02 && n >= 8:
				s.parseKeySpecific(d[4:7])
			}
			d = d[n:]
		}
		return s, nil
	default:
		return s, fmt.Errorf("scsi: unknown sense response code %02Xh", code)
	}
}

// String returns key, meaning and numbers: "ILLEGAL REQUEST: invalid field in
// CDB (5/24/00)".
func (s Sense) String() string {
	t := fmt.Sprintf("%v: %v (%X/%02X/%02X)", s.Key, s.ASC, byte(s.Key), byte(s.ASC>>8), byte(s.ASC))
	if s.FieldValid && s.InCDB {
		t += fmt.Sprintf(" at CDB byte %d", s.Field)
	} else if s.FieldValid {
		t += fmt.Sprintf(" at parameter byte %d", s.Field)
	}
	if s.InfoValid {
		t += fmt.Sprintf(", information %d", s.Info)
	}
	if s.Deferred {
		t += ", about an earlier command; this one was not carried out"
	}
	return t
}

// SenseError is a command that did not end with GOOD (or CONDITION MET).
type SenseError struct {
	Op     Opcode
	Status Status
	Sense  Sense // valid with StatusCheckCondition
}

// NewSenseError makes the error for a command that ended with st and the given
// sense data, or nil for a good status.
func NewSenseError(op Opcode, st Status, sense []byte) error {
	if st == StatusGood || st == StatusConditionMet {
		return nil
	}
	e := &SenseError{Op: op, Status: st}
	if st == StatusCheckCondition {
		// Sense that cannot be read leaves NO SENSE beside the status, which is
		// all that is known then.
		e.Sense, _ = ParseSense(sense)
	}
	return e
}

// Error names the command, the status and what the sense data says.
func (e *SenseError) Error() string {
	if e.Status == StatusCheckCondition {
		return fmt.Sprintf("scsi: %v failed: %v", e.Op, e.Sense)
	}
	return fmt.Sprintf("scsi: %v failed with status %v", e.Op, e.Status)
}

// IsUnitAttention reports whether the command was not executed because the
// target had something to tell first; it may be sent again as it is.
func (e *SenseError) IsUnitAttention() bool {
	return e.Status == StatusCheckCondition && e.Sense.Key == KeyUnitAttention
}
