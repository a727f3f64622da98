package nvme

import (
	"encoding/binary"
	"strings"
)

// layout moves the fields of a structure between a struct and its bytes, so that
// where a field lies is written down once for both directions.
type layout struct {
	b   []byte
	put bool // struct to bytes
}

func (l layout) u8(at int, p *uint8) {
	if l.put {
		l.b[at] = *p
	} else {
		*p = l.b[at]
	}
}

func (l layout) u16(at int, p *uint16) {
	if l.put {
		binary.LittleEndian.PutUint16(l.b[at:], *p)
	} else {
		*p = binary.LittleEndian.Uint16(l.b[at:])
	}
}

func (l layout) u32(at int, p *uint32) {
	if l.put {
		binary.LittleEndian.PutUint32(l.b[at:], *p)
	} else {
		*p = binary.LittleEndian.Uint32(l.b[at:])
	}
}

func (l layout) u64(at int, p *uint64) {
	if l.put {
		binary.LittleEndian.PutUint64(l.b[at:], *p)
	} else {
		*p = binary.LittleEndian.Uint64(l.b[at:])
	}
}

func (l layout) bytes(at int, p []byte) {
	if l.put {
		copy(l.b[at:], p)
	} else {
		copy(p, l.b[at:])
	}
}

// text moves ASCII padded with spaces.
func (l layout) text(at, n int, p *string) {
	if !l.put {
		*p = trim(l.b[at : at+n])
		return
	}
	field := l.b[at : at+n]
	for k := copy(field, *p); k < n; k++ {
		field[k] = ' '
	}
}

// name moves a string that zeroes end, at most n-1 bytes.
func (l layout) name(at, n int, p *string) {
	if !l.put {
		*p = trim(l.b[at : at+n])
		return
	}
	copy(l.b[at:at+n-1], *p)
}

// trim cuts what pads a string: zeroes as Linux does it, spaces as SPDK does.
func trim(b []byte) string {
	s, _, _ := strings.Cut(string(b), "\x00")
	return strings.TrimRight(s, " ")
}
