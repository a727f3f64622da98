package capture

import (
	"bytes"
	"encoding/binary"
	"time"
)

// aligned makes segments of whole FPDUs out of one direction of a connection that carries MPA:
// tshark 4.0 loses the framing where one begins in the last four bytes of a segment, and reads
// from a socket end anywhere.
type aligned struct {
	on    bool
	start bool   // the start-up frame is still to come
	off   uint64 // of held in its stream
	held  []byte // what is not whole yet
}

// What the frames of MPA's start-up begin with (RFC 5044 §7.1).
var (
	requestKey = []byte("MPA ID Req Frame")
	replyKey   = []byte("MPA ID Rep Frame")
)

// whole returns how much of what is held are whole frames that fit a segment, or one that is
// larger; 0: there is none.
func (a *aligned) whole() int {
	n := 0
	for {
		size, start := 0, a.start && n == 0
		switch b := a.held[n:]; {
		case start && len(b) >= 20:
			size = 20 + int(binary.BigEndian.Uint16(b[18:]))
		case !start && len(b) >= 2:
			size = (2+int(binary.BigEndian.Uint16(b))+3)&^3 + 4 // the CRC field is always there
		}
		if size == 0 || n+size > len(a.held) || n > 0 && n+size > maxSegment {
			return n
		}
		n += size
	}
}

// stream writes bytes that stand at an offset of their stream; what is not whole is kept until it
// is. A gap, or the end, lets it go as it is.
func (f *file) stream(at time.Time, s *stream, dir int, off uint64, p []byte) error {
	a := &s.mpa[dir]
	if bytes.HasPrefix(p, requestKey) || bytes.HasPrefix(p, replyKey) {
		if err := f.release(at, s, dir); err != nil {
			return err
		}
		a.on, a.start, a.off = true, true, off
	}
	if !a.on || off != a.off+uint64(len(a.held)) {
		if err := f.release(at, s, dir); err != nil {
			return err
		}
		return f.data(at, s, dir, off, p)
	}
	a.held = append(a.held, p...)
	for {
		n := a.whole()
		if n == 0 {
			return nil
		}
		if err := f.data(at, s, dir, a.off, a.held[:n]); err != nil {
			return err
		}
		a.start = false
		a.off += uint64(n)
		a.held = append(a.held[:0], a.held[n:]...)
	}
}

// release writes what is held, and ends the holding.
func (f *file) release(at time.Time, s *stream, dir int) error {
	a := &s.mpa[dir]
	held := a.held
	a.on, a.held = false, nil
	return f.data(at, s, dir, a.off, held)
}
