package stream

import (
	"bytes"
	"errors"
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

func FuzzImport(f *testing.F) {
	_, d := content(5)
	var b bytes.Buffer
	Export(&b, d, Header{Size: 65536}, []Extent{{Off: 0, Len: 4096, Data: true}, {Off: 8192, Len: 4096}}, nil)
	f.Add(b.Bytes())
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := NewReader(bytes.NewReader(b))
		if err != nil {
			return
		}
		r.Import(lvmtest.New(65536), false, nil)
	})
}
