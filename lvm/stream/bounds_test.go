package stream

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math"
	"testing"

	"softiser/lvm/internal/lvmtest"
)

// crafted is a stream of one record, without an end; its checksums are right.
func crafted(t *testing.T, h Header, typ byte, off, n int64, p []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := Export(&b, nil, h, nil, nil); err != nil {
		t.Fatal(err)
	}
	b.Truncate(b.Len() - recordLen - sha256.Size - 4) // the end record
	if err := (&exporter{w: &b, sum: sha256.New()}).put(typ, off, n, p); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestRecordBounds: a record lies behind those before it and within the volume that the header
// tells of, however large the destination is, and holds no more data than it may.
func TestRecordBounds(t *testing.T) {
	const volume, start = 5 << 18, 4096
	data := bytes.Repeat([]byte{7}, maxData+1)
	for _, c := range []struct {
		typ    byte
		off, n int64
		ok     bool
	}{
		{'D', start, 512, true},
		{'D', start, maxData, true},
		{'D', start, maxData + 1, false},
		{'D', volume - 512, 512, true},
		{'D', volume - 512, 513, false},
		{'D', volume, 1, false},
		{'D', volume + 512, 512, false},
		{'D', start - 1, 512, false},
		{'D', start, -1, false},
		{'D', -512, 512, false},
		{'D', start, math.MaxInt64, false},
		{'Z', start, volume - start, true},
		{'Z', start, volume - start + 1, false},
		{'Z', start, -1, false},
		{'Z', -512, 1024, false},
		{'Z', start, math.MaxInt64, false},
		{'Z', start - 1, 1, false},
		{'E', 0, sha256.Size - 1, false},
		{'X', start, 0, false},
		{0, start, 0, false},
	} {
		t.Run(fmt.Sprintf("%q, %d bytes at %d", c.typ, c.n, c.off), func(t *testing.T) {
			var p []byte
			if c.typ == 'D' {
				p = data[:min(max(c.n, 0), maxData+1)]
			}
			dst := lvmtest.New(2 * volume).Quiet()
			r, err := NewReader(bytes.NewReader(crafted(t, Header{Size: volume, Start: start}, c.typ, c.off, c.n, p)))
			if err != nil {
				t.Fatal(err)
			}
			next, err := r.Import(dst, false, nil)
			if c.ok {
				// It is followed by nothing.
				if !errors.Is(err, io.ErrUnexpectedEOF) || next != c.off+c.n {
					t.Errorf("done up to %d, %v", next, err)
				}
				return
			}
			if !errors.Is(err, ErrFormat) || next != start || dst.Writes() != 1 { // a flush
				t.Errorf("done up to %d with %d writes, %v", next, dst.Writes()-1, err)
			}
		})
	}
}

// TestHeaderBounds: sizes and offsets that no volume has are no header.
func TestHeaderBounds(t *testing.T) {
	for _, c := range []struct {
		size, start int64
		ok          bool
	}{
		{0, 0, true}, {4096, 4096, true}, {4096, 4097, false}, {4096, -1, false}, {-1, 0, false}, {-1, -1, false}, {-2, -1, false},
	} {
		_, err := NewReader(bytes.NewReader(crafted(t, Header{Size: c.size, Start: c.start}, 'E', 0, 0, nil)))
		if c.ok != (err == nil) || !c.ok && !errors.Is(err, ErrFormat) {
			t.Errorf("from %d of %d: %v", c.start, c.size, err)
		}
	}
}

// TestDamagedDataIsNotWritten: data is checked before it replaces anything.
func TestDamagedDataIsNotWritten(t *testing.T) {
	b := crafted(t, Header{Size: size}, 'D', 0, 512, bytes.Repeat([]byte{7}, 512))
	b[len(b)-5] ^= 1 // the last byte of the data
	dst := lvmtest.New(size)
	r, err := NewReader(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	if next, err := r.Import(dst, false, nil); !errors.Is(err, ErrChecksum) || next != 0 {
		t.Errorf("done up to %d, %v", next, err)
	}
	same(t, dst, make([]byte, size))
}

// TestWrongAsAWhole: where the records are good one by one and not all together, none of them counts as done.
func TestWrongAsAWhole(t *testing.T) {
	const start = 4096
	b := bytes.NewBuffer(crafted(t, Header{Size: size, Start: start}, 'D', start, 512, bytes.Repeat([]byte{7}, 512)))
	if err := (&exporter{w: b, sum: sha256.New(), n: 1}).put('E', 512, sha256.Size, make([]byte, sha256.Size)); err != nil {
		t.Fatal(err)
	}
	r, err := NewReader(b)
	if err != nil {
		t.Fatal(err)
	}
	if next, err := r.Import(lvmtest.New(size), false, nil); !errors.Is(err, ErrChecksum) || next != start {
		t.Errorf("done up to %d, %v", next, err)
	}
}

// TestBreaksOffBetweenRecords: a stream that ends where a record does is still told from one that
// is complete.
func TestBreaksOffBetweenRecords(t *testing.T) {
	_, d := content(5)
	b := export(t, d, Header{}, whole)
	for _, at := range records(t, b) {
		r, err := NewReader(bytes.NewReader(b[:at]))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.Import(lvmtest.New(size).Quiet(), true, nil); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("at %d of %d: %v", at, len(b), err)
		}
	}
}

var errBroken = errors.New("broken")

// brokenAt is a device that cannot be read behind an offset, and a writer that takes so many bytes.
type brokenAt int64

func (b brokenAt) ReadAt(p []byte, off int64) (int, error) {
	if off+int64(len(p)) > int64(b) {
		return 0, errBroken
	}
	return len(p), nil
}

func (b *brokenAt) Write(p []byte) (int, error) {
	if int64(len(p)) > int64(*b) {
		return 0, errBroken
	}
	*b -= brokenAt(len(p))
	return len(p), nil
}

// TestExportFails: what cannot be read is not exported as something else, and what nobody has
// taken has not been exported.
func TestExportFails(t *testing.T) {
	if err := Export(io.Discard, brokenAt(size/2), Header{Size: size}, whole, nil); !errors.Is(err, errBroken) {
		t.Errorf("from a device that cannot be read: %v", err)
	}
	_, d := content(6)
	es := []Extent{{Off: 0, Len: 65536}, {Off: 65536, Len: 512, Data: true}}
	b := export(t, d, Header{}, es)
	for n := 0; n < len(b); n += 4 { // no write is shorter
		w := brokenAt(n)
		if err := Export(&w, d, Header{Size: size}, es, nil); !errors.Is(err, errBroken) {
			t.Fatalf("%d of %d bytes were taken: %v", n, len(b), err)
		}
	}
	w := brokenAt(len(b))
	if err := Export(&w, d, Header{Size: size}, es, nil); err != nil {
		t.Error(err)
	}
}

// TestExportProgress: what lies before the start counts as done, and a zero range is one step.
func TestExportProgress(t *testing.T) {
	_, d := content(6)
	var got []int64
	es := []Extent{{Off: 0, Len: 4096, Data: true}, {Off: 8192, Len: 8192}, {Off: 65536, Len: maxData + 512, Data: true}}
	if err := Export(io.Discard, d, Header{Size: size, Start: 8192 + 512}, es, func(done, total int64) { got = append(got, done, total) }); err != nil {
		t.Fatal(err)
	}
	const total = 4096 + 8192 + maxData + 512
	want := []int64{12288, total, 12288 + maxData, total, total, total}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%v, not %v", got, want)
	}
}

// TestImportProgress: gaps between records count as done, too.
func TestImportProgress(t *testing.T) {
	_, d := content(6)
	b := export(t, d, Header{}, []Extent{{Off: 4096, Len: 4096}, {Off: size - 512, Len: 512}})
	var got []int64
	r, err := NewReader(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Import(lvmtest.New(size), false, func(done, total int64) { got = append(got, done, total) }); err != nil {
		t.Fatal(err)
	}
	if want := []int64{8192, size, size, size}; fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%v, not %v", got, want)
	}
}
