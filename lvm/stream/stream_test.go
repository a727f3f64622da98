package stream

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"testing"

	"softiser/lvm/internal/lvmtest"
)

const size = 2 << 20

func content(seed uint64) ([]byte, *lvmtest.Disk) {
	r := rand.New(rand.NewPCG(seed, 0))
	p := make([]byte, size)
	for i := 0; i < size; i += 65536 {
		if r.IntN(3) > 0 {
			for j := range 65536 {
				p[i+j] = byte(r.Uint32())
			}
		}
	}
	d := lvmtest.New(size)
	d.WriteAt(p, 0)
	return p, d
}

var whole = []Extent{{Off: 0, Len: size, Data: true}}

func export(t testing.TB, d *lvmtest.Disk, h Header, es []Extent) []byte {
	var b bytes.Buffer
	h.Size = size
	if err := Export(&b, d, h, es, nil); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func same(t *testing.T, d *lvmtest.Disk, want []byte) {
	t.Helper()
	got := make([]byte, size)
	if _, err := d.ReadAt(got, 0); err != nil || !bytes.Equal(got, want) {
		t.Fatal("content differs", err)
	}
}

func TestFull(t *testing.T) {
	p, d := content(1)
	b := export(t, d, Header{Volume: "v", ID: "x"}, whole)
	dst := lvmtest.New(size)
	dst.WriteAt(bytes.Repeat([]byte{1}, size), 0)
	r, err := NewReader(bytes.NewReader(b))
	if err != nil || r.Header.ID != "x" {
		t.Fatal(err)
	}
	if next, err := r.Import(dst, false, nil); err != nil || next != size {
		t.Fatal(next, err)
	}
	same(t, dst, p)
	small := lvmtest.New(size / 2)
	r, _ = NewReader(bytes.NewReader(b))
	if _, err := r.Import(small, false, nil); !errors.Is(err, ErrMismatch) {
		t.Fatal(err)
	}
}

// TestResume breaks a transfer off anywhere and goes on from the offset that
// the importer names.
func TestResume(t *testing.T) {
	p, d := content(2)
	r := rand.New(rand.NewPCG(9, 9))
	dst := lvmtest.New(size)
	next := int64(0)
	for range 6 {
		b := export(t, d, Header{Start: next}, whole)
		cut := r.IntN(len(b))
		rd, err := NewReader(bytes.NewReader(b[:cut]))
		if err != nil {
			continue
		}
		n, err := rd.Import(dst, true, nil)
		if err == nil || !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatal(err)
		}
		if n < next {
			t.Fatal("went back")
		}
		next = n
	}
	rd, err := NewReader(bytes.NewReader(export(t, d, Header{Start: next}, whole)))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := rd.Import(dst, true, nil); err != nil {
		t.Fatal(err)
	}
	same(t, dst, p)
}

// TestDamage flips bits all over the stream: each is found.
func TestDamage(t *testing.T) {
	_, d := content(3)
	b := export(t, d, Header{}, whole[:1])
	r := rand.New(rand.NewPCG(4, 4))
	for i := range 150 {
		at := r.IntN(len(b))
		if i < 100 {
			at = i
		}
		c := bytes.Clone(b)
		c[at] ^= 1 << r.IntN(8)
		rd, err := NewReader(bytes.NewReader(c))
		if err == nil {
			_, err = rd.Import(lvmtest.New(size).Quiet(), true, nil)
		}
		if err == nil {
			t.Fatalf("a flip at %d went unnoticed", at)
		}
	}
}

// FuzzImport imports streams whose checksums are right. Of the input each record has
// type | offset 2 | length 2 | length of the payload 2 | payload.
func FuzzImport(f *testing.F) {
	rec := func(typ byte, off, n int, p string) string {
		b := append([]byte{typ}, byte(off), byte(off>>8), byte(n), byte(n>>8), byte(len(p)), byte(len(p)>>8))
		return string(b) + p
	}
	const header = `{"volume":"v","id":"x","size":65536}`
	block := string(bytes.Repeat([]byte{7}, 512))
	f.Add([]byte(header), []byte(rec('D', 0, 512, block)+rec('Z', 512, 4096, "")), true, true)
	f.Add([]byte(header), []byte(rec('Z', 0, 512, "")+rec('D', 0, 512, block)), true, false)
	f.Add([]byte(`{"size":65536,"start":32768}`), []byte(rec('D', 32768, 512, block)), false, true)
	f.Add([]byte(`{"size":65536}`), []byte(rec('D', 65535, 513, block)+rec('X', 0, 0, "")), true, true)
	f.Fuzz(func(t *testing.T, header, in []byte, numbered, ends bool) {
		m, data := magic, int64(0)
		if !numbered {
			m = magic1
		}
		b := le.AppendUint32([]byte(m), uint32(len(header)))
		b = append(b, header...)
		b = le.AppendUint32(b, crc32.Checksum(b[len(m):], castagnoli))
		sum := sha256.New()
		put := func(n uint64, typ byte, off, size int64, p []byte) {
			at := len(b)
			b = append(b, typ)
			if numbered {
				b = le.AppendUint64(b, n)
			}
			b = le.AppendUint64(le.AppendUint64(b, uint64(off)), uint64(size))
			b = le.AppendUint32(b, crc32.Checksum(b[at:], castagnoli))
			if typ != 'E' {
				sum.Write(b[at:])
			}
			if typ != 'Z' {
				sum.Write(p)
				b = le.AppendUint32(append(b, p...), crc32.Checksum(p, castagnoli))
			}
		}
		n := uint64(0)
		for ; len(in) >= 7; n++ {
			p := in[7:min(len(in), 7+int(le.Uint16(in[5:])))]
			put(n, in[0], int64(le.Uint16(in[1:])), int64(le.Uint16(in[3:])), p)
			if in[0] == 'D' {
				data += int64(le.Uint16(in[3:]))
			}
			in = in[7+len(p):]
		}
		if ends {
			put(n, 'E', data, sha256.Size, sum.Sum(nil))
		}
		r, err := NewReader(bytes.NewReader(b))
		if err != nil {
			return
		}
		start, d := r.Header.Start, lvmtest.New(65536)
		next, err := r.Import(d, false, nil)
		if next < start || next > r.Header.Size || err == nil && next != r.Header.Size || err == nil && !ends {
			t.Errorf("from %d to %d of %d, %v", start, next, r.Header.Size, err)
		}
		before := make([]byte, min(start, 65536))
		if _, err := d.ReadAt(before, 0); err == nil && len(bytes.Trim(before, "\x00")) > 0 {
			t.Error("what lies before the start was written to")
		}
	})
}
