package stream

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"hash/crc32"
	"io"
	"testing"

	"softiser/lvm/internal/lvmtest"
)

// records gives the place of each record of a stream without damage.
func records(t *testing.T, b []byte) (at []int) {
	t.Helper()
	rd := bytes.NewReader(b)
	s, err := NewReader(rd)
	if err != nil {
		t.Fatal(err)
	}
	for {
		at = append(at, len(b)-rd.Len())
		typ, _, n, err := s.record()
		if err != nil {
			t.Fatal(err)
		}
		if typ == 'E' {
			return at
		}
		if typ == 'D' {
			if err := s.payload(make([]byte, n)); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestLostRecord takes any one record out of a stream that then breaks off: what
// the importer says to be done is done, so that going on from there gives the
// right content.
func TestLostRecord(t *testing.T) {
	p, d := content(7)
	var es []Extent
	for off := int64(0); off < size; off += 65536 { // with gaps, as an increment has
		es = append(es, Extent{Off: off, Len: 16384, Data: true}, Extent{Off: off + 32768, Len: 16384, Data: true})
	}
	b := export(t, d, Header{}, es)
	at := records(t, b)
	last := at[len(at)-1]
	for i, from := range at[:len(at)-2] {
		dst := lvmtest.New(size)
		dst.WriteAt(p, 0)
		for _, e := range es {
			dst.WriteAt(bytes.Repeat([]byte{0xee}, int(e.Len)), e.Off)
		}
		lost := append(bytes.Clone(b[:from]), b[at[i+1]:last]...)
		rd, err := NewReader(bytes.NewReader(lost))
		if err != nil {
			t.Fatal(err)
		}
		next, err := rd.Import(dst, false, nil)
		if !errors.Is(err, ErrFormat) {
			t.Fatalf("record %d was lost: %v", i, err)
		}
		rd, err = NewReader(bytes.NewReader(export(t, d, Header{Start: next}, es)))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := rd.Import(dst, false, nil); err != nil {
			t.Fatal(err)
		}
		same(t, dst, p)
	}
}

// format1 is the content of d as version 1 wrote it.
func format1(t *testing.T, d *lvmtest.Disk) []byte {
	t.Helper()
	var w bytes.Buffer
	js := []byte(`{"volume":"v","id":"","size":2097152,"start":0}`)
	head := le.AppendUint32([]byte(magic1), uint32(len(js)))
	head = append(head, js...)
	w.Write(le.AppendUint32(head, crc32.Checksum(head[len(magic1):], castagnoli)))
	sum := sha256.New()
	put := func(typ byte, off, n int64, p []byte) {
		b := le.AppendUint64([]byte{typ}, uint64(off))
		b = le.AppendUint64(b, uint64(n))
		b = le.AppendUint32(b, crc32.Checksum(b, castagnoli))
		if typ != 'E' {
			sum.Write(b)
			sum.Write(p)
		}
		w.Write(b)
		w.Write(p)
		w.Write(le.AppendUint32(nil, crc32.Checksum(p, castagnoli)))
	}
	p := make([]byte, 65536)
	for off := int64(0); off < size; off += int64(len(p)) {
		if _, err := d.ReadAt(p, off); err != nil {
			t.Fatal(err)
		}
		put('D', off, int64(len(p)), p)
	}
	put('E', size, sha256.Size, sum.Sum(nil))
	return w.Bytes()
}

// TestFormat1: streams without record numbers are read; one that breaks off may
// have lost anything, so it is not gone on with.
func TestFormat1(t *testing.T) {
	p, d := content(8)
	b := format1(t, d)
	dst := lvmtest.New(size)
	rd, err := NewReader(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	if next, err := rd.Import(dst, false, nil); err != nil || next != size {
		t.Fatal(next, err)
	}
	same(t, dst, p)
	rd, err = NewReader(bytes.NewReader(b[:len(b)-50]))
	if err != nil {
		t.Fatal(err)
	}
	if next, err := rd.Import(dst, false, nil); !errors.Is(err, io.ErrUnexpectedEOF) || next != 0 {
		t.Fatal(next, err)
	}
}
