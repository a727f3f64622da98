// Package stream carries the content of a volume, whole or what has changed
// since a snapshot, from one place to another: through a pipe, a file or a
// network connection.
//
//	"softiser volume stream 2\n"
//	header length 4 | header (JSON) | CRC32C 4
//	record*         type 1 | number 8 | offset 8 | length 8 | CRC32C of these 4 | payload | CRC32C of it 4
//	end record      type 'E', offset = bytes of data, length 32, payload = SHA-256
//
// All numbers are little-endian. Records are 'D' (data, at most 1 MiB each) and
// 'Z' (a range that reads as zeroes, no payload), in ascending order and numbered
// from 0. The SHA-256 is over all headers and payloads of records. Every byte is
// covered by a checksum before it is acted upon.
//
// A transfer that breaks off is resumed by exporting again from an offset: the
// importer knows how far it is durably done, because no record before can be
// missing. Format 1 had no numbers. It is still read, but one that breaks off is
// imported anew.
package stream

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"

	"softiser/blockdev"
)

const (
	magic     = "softiser volume stream 2\n"
	magic1    = "softiser volume stream 1\n" // as long as magic
	maxHeader = 64 << 10
	maxData   = 1 << 20
	recordLen = 1 + 8 + 8 + 8 + 4
)

// Errors of Import.
var (
	ErrFormat   = errors.New("not a volume stream, or damaged")
	ErrChecksum = errors.New("volume stream: checksum mismatch")
	ErrMismatch = errors.New("volume stream does not fit the destination")
)

var (
	le         = binary.LittleEndian
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
)

// Header says what a stream holds.
type Header struct {
	Volume string `json:"volume"`         // name, for people
	ID     string `json:"id"`             // UUID of the exported volume
	Base   string `json:"base,omitempty"` // UUID that it is relative to; "": full
	Size   int64  `json:"size"`           // bytes of the volume
	Start  int64  `json:"start"`          // first offset, when resumed
}

// Extent is a range to send; Data false: it reads as zeroes.
type Extent = blockdev.Extent

// Progress is told how many bytes of the ranges are done.
type Progress func(done, total int64)

// Export writes the ranges es of dev, in order, to w. Ranges before h.Start are
// left out.
func Export(w io.Writer, dev io.ReaderAt, h Header, es []Extent, progress Progress) error {
	e := &exporter{w: w, sum: sha256.New(), buf: make([]byte, maxData)}
	js, err := json.Marshal(h)
	if err != nil {
		return err
	}
	b := le.AppendUint32([]byte(magic), uint32(len(js)))
	b = append(b, js...)
	b = le.AppendUint32(b, crc32.Checksum(b[len(magic):], castagnoli))
	if _, err := w.Write(b); err != nil {
		return err
	}
	var total, done int64
	for _, x := range es {
		total += x.Len
	}
	for _, x := range es {
		if cut := min(h.Start-x.Off, x.Len); cut > 0 {
			x.Off, x.Len, done = x.Off+cut, x.Len-cut, done+cut
		}
		for x.Len > 0 {
			n := x.Len
			if x.Data {
				n = min(n, maxData)
			}
			if err := e.record(dev, x.Off, n, x.Data); err != nil {
				return err
			}
			x.Off, x.Len, done = x.Off+n, x.Len-n, done+n
			if progress != nil {
				progress(done, total)
			}
		}
	}
	return e.end()
}

type exporter struct {
	w    io.Writer
	sum  hash.Hash
	buf  []byte
	data int64
	n    uint64 // records so far
}

func (e *exporter) record(dev io.ReaderAt, off, n int64, data bool) error {
	if !data {
		return e.put('Z', off, n, nil)
	}
	p := e.buf[:n]
	if _, err := dev.ReadAt(p, off); err != nil {
		return fmt.Errorf("reading %d bytes at %d: %w", n, off, err)
	}
	if allZero(p) {
		return e.put('Z', off, n, nil)
	}
	e.data += n
	return e.put('D', off, n, p)
}

func (e *exporter) put(typ byte, off, n int64, p []byte) error {
	b := le.AppendUint64([]byte{typ}, e.n)
	e.n++
	b = le.AppendUint64(b, uint64(off))
	b = le.AppendUint64(b, uint64(n))
	b = le.AppendUint32(b, crc32.Checksum(b, castagnoli))
	if typ != 'E' {
		e.sum.Write(b)
		e.sum.Write(p)
	}
	if _, err := e.w.Write(b); err != nil {
		return err
	}
	if p == nil {
		return nil
	}
	if _, err := e.w.Write(p); err != nil {
		return err
	}
	_, err := e.w.Write(le.AppendUint32(nil, crc32.Checksum(p, castagnoli)))
	return err
}

func (e *exporter) end() error { return e.put('E', e.data, sha256.Size, e.sum.Sum(nil)) }

func allZero(p []byte) bool {
	return len(p) == 0 || p[0] == 0 && bytes.Equal(p[1:], p[:len(p)-1])
}

// Reader reads a stream.
type Reader struct {
	Header Header
	r      io.Reader
	sum    hash.Hash
	next   int64 // everything before is done

	numbered bool   // format 2
	n        uint64 // records so far
}

// NewReader reads the header of a stream.
func NewReader(r io.Reader) (*Reader, error) {
	b := make([]byte, len(magic)+4)
	switch _, err := io.ReadFull(r, b); err {
	case nil:
	case io.EOF:
		return nil, fmt.Errorf("the input is empty: %w", ErrFormat)
	case io.ErrUnexpectedEOF:
		return nil, ErrFormat
	default:
		return nil, err
	}
	numbered := string(b[:len(magic)]) == magic
	if !numbered && string(b[:len(magic)]) != magic1 {
		return nil, ErrFormat
	}
	n := le.Uint32(b[len(magic):])
	if n > maxHeader {
		return nil, ErrFormat
	}
	rest := make([]byte, n+4)
	switch _, err := io.ReadFull(r, rest); err {
	case nil:
	case io.EOF, io.ErrUnexpectedEOF:
		return nil, ErrFormat
	default:
		return nil, err
	}
	sum := crc32.Update(crc32.Checksum(b[len(magic):], castagnoli), castagnoli, rest[:n])
	if sum != le.Uint32(rest[n:]) {
		return nil, ErrChecksum
	}
	s := &Reader{r: r, sum: sha256.New(), numbered: numbered}
	if err := json.Unmarshal(rest[:n], &s.Header); err != nil {
		return nil, fmt.Errorf("%w: %v", ErrFormat, err)
	}
	if s.Header.Size < 0 || s.Header.Start < 0 || s.Header.Start > s.Header.Size {
		return nil, ErrFormat
	}
	s.next = s.Header.Start
	return s, nil
}

// Import writes what follows the header to dev, and flushes it. fresh says that
// dev reads as zeroes where nothing was written, so that zeroes need not be.
// When it fails, everything before the returned offset is durably done: export
// again with Start at that offset to go on.
func (s *Reader) Import(dev blockdev.Device, fresh bool, progress Progress) (next int64, err error) {
	start := s.next
	err = s.run(dev, fresh, progress)
	if e := dev.Flush(); e != nil {
		return start, errors.Join(err, e)
	}
	if err != nil && !s.numbered {
		return start, err // format 1 does not show whether records are missing
	}
	return s.next, err
}

// run applies the records that are left to dev. fresh says that dev holds zeroes, so
// that these need not be written.
func (s *Reader) run(dev blockdev.Device, fresh bool, progress Progress) error {
	info := dev.Info()
	if info.Size < s.Header.Size {
		return fmt.Errorf("%w: it has %d bytes, the volume %d", ErrMismatch, info.Size, s.Header.Size)
	}
	buf := make([]byte, maxData)
	var data int64
	for {
		typ, off, n, err := s.record()
		if err != nil {
			return err
		}
		if typ == 'E' {
			return s.end(off, n, data)
		}
		if off < s.next || off > s.Header.Size || n > s.Header.Size-off || typ == 'D' && n > maxData {
			return fmt.Errorf("%w: a record for %d bytes at %d is out of place", ErrFormat, n, off)
		}
		if typ == 'Z' {
			if !fresh {
				if err := dev.WriteZeroes(off, n, true); err != nil {
					return err
				}
			}
		} else {
			p := buf[:n]
			if err := s.payload(p); err != nil {
				return err
			}
			s.sum.Write(p)
			if _, err := dev.WriteAt(p, off); err != nil {
				return err
			}
			data += n
		}
		s.next = off + n
		if progress != nil {
			progress(s.next, s.Header.Size)
		}
	}
}

// record reads the head of the next record, and checks its checksum and its place in
// the order.
func (s *Reader) record() (typ byte, off, n int64, err error) {
	b := make([]byte, recordLen)
	if !s.numbered {
		b = b[:recordLen-8]
	}
	if _, err := io.ReadFull(s.r, b); err != nil {
		return 0, 0, 0, breaksOff(err)
	}
	end := len(b) - 4
	if crc32.Checksum(b[:end], castagnoli) != le.Uint32(b[end:]) {
		return 0, 0, 0, ErrChecksum
	}
	typ, off, n = b[0], int64(le.Uint64(b[end-16:])), int64(le.Uint64(b[end-8:]))
	if s.numbered {
		if got := le.Uint64(b[1:]); got != s.n {
			return 0, 0, 0, fmt.Errorf("%w: record %d comes where %d is due", ErrFormat, got, s.n)
		}
		s.n++
	}
	if off < 0 || n < 0 || typ != 'D' && typ != 'Z' && typ != 'E' {
		return 0, 0, 0, ErrFormat
	}
	if typ != 'E' {
		s.sum.Write(b)
	}
	return typ, off, n, nil
}

// breaksOff is the error for a stream that cannot be read any further: it has no end record yet.
func breaksOff(err error) error {
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("volume stream breaks off: %w", err)
}

func (s *Reader) payload(p []byte) error {
	if _, err := io.ReadFull(s.r, p); err != nil {
		return breaksOff(err)
	}
	var c [4]byte
	if _, err := io.ReadFull(s.r, c[:]); err != nil {
		return breaksOff(err)
	}
	if crc32.Checksum(p, castagnoli) != le.Uint32(c[:]) {
		return ErrChecksum
	}
	return nil
}

func (s *Reader) end(off, n, data int64) error {
	if n != sha256.Size {
		return ErrFormat
	}
	p := make([]byte, n)
	if err := s.payload(p); err != nil {
		return err
	}
	if off != data || !bytes.Equal(p, s.sum.Sum(nil)) {
		s.next = s.Header.Start // nobody knows which record is the wrong one
		return ErrChecksum
	}
	s.next = s.Header.Size
	return nil
}
