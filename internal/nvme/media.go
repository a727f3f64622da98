package nvme

import (
	"encoding/binary"
	"fmt"
)

// Format is the view of a Format NVM command.
//
//	31   14 13   12 11   9 8   7   5 4    3    0
//	+------+-------+------+---+-----+----+------+
//	| 0    | LBAFU |  SES |PIL| PI  |MSET| LBAF |   dword 10
//	+------+-------+------+---+-----+----+------+
type Format struct{ *SQE }

// Format views s as a Format NVM command.
func (s *SQE) Format() Format { return Format{s} }

// NewFormat clears s and makes it format a namespace.
func (s *SQE) NewFormat(nsid uint32, e SecureErase) Format {
	s.Init(AdminFormatNVM, nsid)
	s.SetCDW(10, uint32(e)<<9)
	return Format{s}
}

// SecureErase says what becomes of the old content.
type SecureErase uint8

// Secure erase settings.
const (
	SecureEraseNone   SecureErase = 0
	SecureEraseUser   SecureErase = 1 // nobody finds it any more
	SecureEraseCrypto SecureErase = 2
)

// LBAFormat returns the index of the LBA format that is asked for.
func (c Format) LBAFormat() uint8 { return uint8(c.CDW(10)&0xF | c.CDW(10)>>8&0x30) }

// Metadata returns the fields about metadata and protection information: 0 without.
func (c Format) Metadata() uint8 { return uint8(c.CDW(10) >> 4 & 0x1F) }

// SecureErase returns the secure erase setting.
func (c Format) SecureErase() SecureErase { return SecureErase(c.CDW(10) >> 9 & 7) }

// SanitizeAction is what a Sanitize command does.
type SanitizeAction uint8

// Actions.
const (
	SanitizeExitFailure SanitizeAction = 1
	SanitizeBlockErase  SanitizeAction = 2
	SanitizeOverwrite   SanitizeAction = 3
	SanitizeCryptoErase SanitizeAction = 4
)

// Sanitize is the view of a Sanitize command.
//
//	31    10 9    8      7      4 3    2      0
//	+-------+----+------+--------+----+--------+
//	| 0     |NDAS|OIPBP | OWPASS |AUSE| action |   dword 10
//	+-------+----+------+--------+----+--------+
//	| overwrite pattern                        |   dword 11
//	+------------------------------------------+
type Sanitize struct{ *SQE }

// Sanitize views s as a Sanitize command.
func (s *SQE) Sanitize() Sanitize { return Sanitize{s} }

// NewSanitize clears s and makes it begin, with dword 10 as it is in the sanitize log.
func (s *SQE) NewSanitize(dword10, pattern uint32) Sanitize {
	s.Init(AdminSanitize, 0)
	s.SetCDW(10, dword10)
	s.SetCDW(11, pattern)
	return Sanitize{s}
}

// Bits of dword 10 of Sanitize.
const (
	SanitizeUnrestricted uint32 = 1 << 3 // a failure may be left without another sanitize
	SanitizeInvert       uint32 = 1 << 8 // every other pass writes the complement
	SanitizeNoDeallocate uint32 = 1 << 9
)

// SanitizeDword10 makes dword 10; passes are 1 to 16.
func SanitizeDword10(a SanitizeAction, passes int, flags uint32) uint32 {
	return uint32(a) | uint32(passes&0xF)<<4 | flags
}

// Action returns what is to be done.
func (c Sanitize) Action() SanitizeAction { return SanitizeAction(c.CDW(10) & 7) }

// Passes returns how many times the medium is to be overwritten, 1 to 16.
func (c Sanitize) Passes() int { return (int(c.CDW(10)>>4&0xF)+15)%16 + 1 }

// Has reports whether a flag is set.
func (c Sanitize) Has(flag uint32) bool { return c.CDW(10)&flag != 0 }

// Pattern returns what an overwrite writes.
func (c Sanitize) Pattern() uint32 { return c.CDW(11) }

// SanitizeState is how the last sanitize stands.
type SanitizeState uint8

// States of the last sanitize.
const (
	SanitizeNever  SanitizeState = 0
	SanitizeDone   SanitizeState = 1
	SanitizeRuns   SanitizeState = 2
	SanitizeBroken SanitizeState = 3
)

// SanitizeLogLen is the length of the sanitize status log page, bytes.
const SanitizeLogLen = 512

// SanitizeLog is the sanitize status log page.
//
//	0| progress, of 65536 (2)     4| dword 10 of the command (4)
//	2| state and passes (2)       8| estimates, seconds (4 each)
type SanitizeLog struct {
	Progress uint16 // FFFFh when none runs
	State    SanitizeState
	Passes   uint8 // that an overwrite has completed
	Dword10  uint32
}

const (
	sanitizeEstimates = 6
	noEstimate        = 0xFFFFFFFF
)

// AppendTo adds the page; it has no estimates.
func (l *SanitizeLog) AppendTo(dst []byte) []byte {
	dst, b := grow(dst, SanitizeLogLen)
	le := binary.LittleEndian
	le.PutUint16(b, l.Progress)
	le.PutUint16(b[2:], uint16(l.State)|uint16(l.Passes&0x1F)<<3)
	le.PutUint32(b[4:], l.Dword10)
	for i := range sanitizeEstimates {
		le.PutUint32(b[8+4*i:], noEstimate)
	}
	return dst
}

// ParseSanitizeLog reads the page.
func ParseSanitizeLog(b []byte) (SanitizeLog, error) {
	if len(b) < 8 {
		return SanitizeLog{}, fmt.Errorf("nvme: sanitize log of %d bytes", len(b))
	}
	le := binary.LittleEndian
	st := le.Uint16(b[2:])
	return SanitizeLog{Progress: le.Uint16(b), State: SanitizeState(st & 7), Passes: uint8(st >> 3 & 0x1F), Dword10: le.Uint32(b[4:])}, nil
}
