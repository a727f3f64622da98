package ondisk

import (
	"bytes"
	"encoding/binary"
	"fmt"
)

// Area is a byte range of a device. Size 0 of a data area means: to the end.
type Area struct {
	Offset, Size uint64
}

// PVInUse is the extension flag of a PV that belongs to a volume group.
const PVInUse = 1

// Label is the labelled sector of a physical volume: label, PV header and
// header extension.
//
//	 0         8            16     20       24         32
//	+---------+------------+------+--------+----------+
//	|LABELONE | sector no. | crc  | offset | LVM2 001 |
//	+---------+------------+------+--------+----------+   offset (32):
//	| PV UUID (32 characters, no dashes)              |
//	+-------------------+-----------------------------+
//	| device size 8     | data areas {offset,size} .. {0,0}
//	+-------------------+ metadata areas {offset,size} .. {0,0}
//	| extension: version 4, flags 4, bootloader areas .. {0,0}
//	+-------------------------------------------------+
//
// The crc covers bytes 20 to 511 of the sector.
type Label struct {
	Sector     int // 0-3, where it was found or goes
	UUID       UUID
	DevSize    uint64 // bytes
	Data       []Area
	Meta       []Area
	ExtVersion uint32 // 0: no extension
	ExtFlags   uint32
	Boot       []Area
}

var (
	labelID   = []byte("LABELONE")
	labelType = []byte("LVM2 001")
)

const labelContents = 32

// FindLabel looks for a label in the first four sectors of a device; head
// holds at least these. ErrNoLabel: none of them claims to be one.
func FindLabel(head []byte) (*Label, error) {
	var bad error
	for s := 0; s < ScanSectors && (s+1)*SectorSize <= len(head); s++ {
		sec := head[s*SectorSize : (s+1)*SectorSize]
		if !bytes.Equal(sec[:8], labelID) || !bytes.Equal(sec[24:32], labelType) {
			continue
		}
		l, err := ParseLabel(sec, s)
		if err == nil {
			return l, nil
		}
		bad = err
	}
	if bad != nil {
		return nil, bad
	}
	return nil, ErrNoLabel
}

// ParseLabel parses one labelled sector found at sector number s.
func ParseLabel(sec []byte, s int) (*Label, error) {
	if len(sec) < SectorSize || !bytes.Equal(sec[:8], labelID) || !bytes.Equal(sec[24:32], labelType) {
		return nil, ErrNoLabel
	}
	sec = sec[:SectorSize]
	le := binary.LittleEndian
	if got := le.Uint64(sec[8:]); got != uint64(s) {
		return nil, fmt.Errorf("%w: label in sector %d says it is sector %d", ErrFormat, s, got)
	}
	if want, got := le.Uint32(sec[16:]), CRC(sec[20:]); want != got {
		return nil, fmt.Errorf("label in sector %d: %w", s, ErrChecksum)
	}
	off := le.Uint32(sec[20:])
	if off < labelContents || off > SectorSize-40 {
		return nil, fmt.Errorf("%w: PV header at offset %d of its sector", ErrFormat, off)
	}
	l := &Label{Sector: s}
	b := sec[off:]
	u, err := ParseUUID(string(b[:32]))
	if err != nil {
		return nil, err
	}
	l.UUID, l.DevSize = u, le.Uint64(b[32:])
	b = b[40:]
	if l.Data, b, err = parseAreas(b); err != nil {
		return nil, err
	}
	if l.Meta, b, err = parseAreas(b); err != nil {
		return nil, err
	}
	if len(b) < 8 {
		return l, nil
	}
	l.ExtVersion = le.Uint32(b)
	if l.ExtVersion == 0 {
		return l, nil
	}
	l.ExtFlags = le.Uint32(b[4:])
	if l.Boot, _, err = parseAreas(b[8:]); err != nil {
		return nil, err
	}
	return l, nil
}

func parseAreas(b []byte) ([]Area, []byte, error) {
	var as []Area
	for len(b) >= 16 {
		a := Area{binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:])}
		b = b[16:]
		if a.Offset == 0 {
			return as, b, nil
		}
		as = append(as, a)
	}
	return nil, nil, fmt.Errorf("%w: area list runs over the end of the label", ErrFormat)
}

// Append appends the labelled sector, 512 bytes.
func (l *Label) Append(b []byte) ([]byte, error) {
	if n := labelContents + 40 + 16*(len(l.Data)+len(l.Meta)+len(l.Boot)+3) + 8; n > SectorSize {
		return nil, fmt.Errorf("%w: label with %d areas does not fit", ErrFormat, len(l.Data)+len(l.Meta)+len(l.Boot))
	}
	base := len(b)
	le := binary.LittleEndian
	b = append(b, labelID...)
	b = le.AppendUint64(b, uint64(l.Sector))
	b = le.AppendUint32(b, 0)
	b = le.AppendUint32(b, labelContents)
	b = append(b, labelType...)
	b = append(b, l.UUID[:]...)
	b = le.AppendUint64(b, l.DevSize)
	b = appendAreas(b, l.Data)
	b = appendAreas(b, l.Meta)
	if l.ExtVersion != 0 {
		b = le.AppendUint32(b, l.ExtVersion)
		b = le.AppendUint32(b, l.ExtFlags)
		b = appendAreas(b, l.Boot)
	}
	b = append(b, make([]byte, SectorSize-(len(b)-base))...)
	le.PutUint32(b[base+16:], CRC(b[base+20:]))
	return b, nil
}

func appendAreas(b []byte, as []Area) []byte {
	for _, a := range append(as[:len(as):len(as)], Area{}) {
		b = binary.LittleEndian.AppendUint64(b, a.Offset)
		b = binary.LittleEndian.AppendUint64(b, a.Size)
	}
	return b
}
