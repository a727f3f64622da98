package ondisk

import (
	"bytes"
	"encoding/binary"
	"fmt"
)

// mdaMagic is " LVM2 x[5A%r0N*>".
var mdaMagic = []byte("\x20\x4c\x56\x4d\x32\x20\x78\x5b\x35\x41\x25\x72\x30\x4e\x2a\x3e")

// Locn says where one text is in its ring. The zero Locn: no text.
type Locn struct {
	Offset   uint64 // bytes from the start of the area, at least 512
	Size     uint64 // bytes, the closing NUL included; may wrap
	Checksum uint32 // CRC of the text
	Flags    uint32 // LocnIgnored
}

// LocnIgnored marks an area that holds no current text on purpose.
const LocnIgnored = 1

// MDAHeader is the first sector of a metadata area.
//
//	 0     4                    20      24      32      40
//	+-----+--------------------+-------+-------+-------+--------
//	| crc | magic (16)         | vers. | start | size  | locns ..
//	+-----+--------------------+-------+-------+-------+--------
//	locn: offset 8, size 8, checksum 4, flags 4
//
// Slot 0 is the committed text, slot 1 the precommitted one. The crc covers
// bytes 4 to 511.
type MDAHeader struct {
	Start, Size uint64 // absolute offset of this header; area size with header
	Committed   Locn
	Precommit   Locn
}

// ParseMDAHeader parses the header found at byte offset start.
func ParseMDAHeader(b []byte, start uint64) (*MDAHeader, error) {
	if len(b) < MDAHeaderLen {
		return nil, fmt.Errorf("%w: short metadata area header", ErrFormat)
	}
	b = b[:MDAHeaderLen]
	le := binary.LittleEndian
	if !bytes.Equal(b[4:20], mdaMagic) {
		return nil, fmt.Errorf("%w: metadata area at %d has no magic", ErrFormat, start)
	}
	if le.Uint32(b) != CRC(b[4:]) {
		return nil, fmt.Errorf("metadata area header at %d: %w", start, ErrChecksum)
	}
	if v := le.Uint32(b[20:]); v != 1 {
		return nil, fmt.Errorf("%w: metadata area version %d", ErrFormat, v)
	}
	h := &MDAHeader{Start: le.Uint64(b[24:]), Size: le.Uint64(b[32:])}
	if h.Start != start {
		return nil, fmt.Errorf("%w: metadata area at %d says it starts at %d", ErrFormat, start, h.Start)
	}
	if h.Size < 2*MDAHeaderLen || h.Size%SectorSize != 0 {
		return nil, fmt.Errorf("%w: metadata area of %d bytes", ErrFormat, h.Size)
	}
	h.Committed, h.Precommit = parseLocn(b[40:]), parseLocn(b[64:])
	for _, l := range []Locn{h.Committed, h.Precommit} {
		if l.Offset == 0 {
			continue
		}
		if l.Offset < MDAHeaderLen || l.Offset >= h.Size || l.Size > h.Size-MDAHeaderLen {
			return nil, fmt.Errorf("%w: text of %d bytes at %d outside its area of %d", ErrFormat, l.Size, l.Offset, h.Size)
		}
	}
	return h, nil
}

func parseLocn(b []byte) Locn {
	le := binary.LittleEndian
	return Locn{le.Uint64(b), le.Uint64(b[8:]), le.Uint32(b[16:]), le.Uint32(b[20:])}
}

// Append appends the header sector, 512 bytes.
func (h *MDAHeader) Append(b []byte) []byte {
	base := len(b)
	le := binary.LittleEndian
	b = append(b, 0, 0, 0, 0)
	b = append(b, mdaMagic...)
	b = le.AppendUint32(b, 1)
	b = le.AppendUint64(b, h.Start)
	b = le.AppendUint64(b, h.Size)
	for _, l := range []Locn{h.Committed, h.Precommit} {
		b = le.AppendUint64(b, l.Offset)
		b = le.AppendUint64(b, l.Size)
		b = le.AppendUint32(b, l.Checksum)
		b = le.AppendUint32(b, l.Flags)
	}
	b = append(b, make([]byte, MDAHeaderLen-(len(b)-base))...)
	le.PutUint32(b[base:], CRC(b[base+4:]))
	return b
}

// MaxText is the longest text the ring takes: old and new must fit at once.
func (h *MDAHeader) MaxText() uint64 { return (h.Size-MDAHeaderLen)/2 - SectorSize }

// Free is what the ring has left for growth of a text of size cur, in whole
// sectors, as lvm2 counts.
func (h *MDAHeader) Free(cur uint64) uint64 {
	cur = (cur + SectorSize - 1) / SectorSize * SectorSize
	if m := h.MaxText(); m > cur {
		return (m - cur) / SectorSize * SectorSize
	}
	return 0
}

// Split gives the one or two byte ranges (absolute offsets) of a text of size
// bytes at ring offset off.
func (h *MDAHeader) Split(off, size uint64) (a, b Area) {
	if rest := h.Size - off; size > rest {
		return Area{h.Start + off, rest}, Area{h.Start + MDAHeaderLen, size - rest}
	}
	return Area{h.Start + off, size}, Area{}
}

// Next is the ring offset for a new text of size bytes: the first sector
// boundary behind the committed text. It fails when the new text would touch
// the old one.
func (h *MDAHeader) Next(size uint64) (uint64, error) {
	if size > h.MaxText() {
		return 0, fmt.Errorf("metadata of %d bytes does not fit the area (at most %d)", size, h.MaxText())
	}
	ring := h.Size - MDAHeaderLen
	c := h.Committed
	if c.Offset == 0 {
		return MDAHeaderLen, nil
	}
	// Positions below count from the start of the ring.
	end := c.Offset - MDAHeaderLen + c.Size
	end = (end + SectorSize - 1) &^ (SectorSize - 1)
	next := end % ring // both are multiples of the sector size
	// The room from the new start, around the end of the ring, to the old start.
	old := c.Offset - MDAHeaderLen
	gap := (old + ring - next) % ring
	if gap < size {
		return 0, fmt.Errorf("metadata of %d bytes does not fit behind the current one in its ring", size)
	}
	return next + MDAHeaderLen, nil
}
