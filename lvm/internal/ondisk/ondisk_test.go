package ondisk

import (
	"bytes"
	"errors"
	"reflect"
	"testing"
)

func TestCRC(t *testing.T) {
	if got := CRC([]byte("123456789")); got != 0x4991cf02 {
		t.Fatalf("CRC = %#x, want 0x4991cf02", got)
	}
}

func TestUUID(t *testing.T) {
	u := NewUUID()
	p, err := ParseUUID(u.String())
	if err != nil || p != u || len(u.String()) != 38 {
		t.Fatalf("%v %v %v", u, p, err)
	}
	for _, s := range []string{"", "abc", "cynfd5-3E97-2hlt-UFAu-S4Yh-2e2E-94aZR1x", "cynfd5-3E97-2hlt-UFAu-S4Yh-2e2E-94aZR/"} {
		if _, err := ParseUUID(s); err == nil {
			t.Errorf("%q accepted", s)
		}
	}
}

func sample() *Label {
	u, _ := ParseUUID("cynfd5-3E97-2hlt-UFAu-S4Yh-2e2E-94aZR1")
	return &Label{Sector: 1, UUID: u, DevSize: 268435456, Data: []Area{{1048576, 0}},
		Meta: []Area{{4096, 1044480}}, ExtVersion: 2, ExtFlags: PVInUse}
}

// TestLabelGolden compares with the checksum that pvck shows for this very
// label as lvm2 2.03.16 wrote it.
func TestLabelGolden(t *testing.T) {
	b, err := sample().Append(nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := b[16:20]; !bytes.Equal(got, []byte{0x35, 0x73, 0x15, 0x46}) {
		t.Fatalf("crc bytes % x", got)
	}
	head := append(make([]byte, 512), b...)
	l, err := FindLabel(append(head, make([]byte, 1024)...))
	if err != nil || !reflect.DeepEqual(l, sample()) {
		t.Fatalf("%+v %v", l, err)
	}
}

func TestLabelErrors(t *testing.T) {
	good, _ := sample().Append(nil)
	if _, err := FindLabel(make([]byte, 2048)); !errors.Is(err, ErrNoLabel) {
		t.Errorf("blank: %v", err)
	}
	if _, err := ParseLabel(good, 2); !errors.Is(err, ErrFormat) {
		t.Errorf("wrong sector: %v", err)
	}
	for i := 20; i < 512; i++ {
		b := bytes.Clone(good)
		b[i] ^= 1
		if _, err := ParseLabel(b, 1); err == nil {
			t.Fatalf("flip at %d accepted", i)
		}
	}
	l := sample()
	l.Meta = make([]Area, 30)
	if _, err := l.Append(nil); err == nil {
		t.Error("30 areas fit into a label")
	}
}

func TestMDAGolden(t *testing.T) {
	h := &MDAHeader{Start: 4096, Size: 1044480, Committed: Locn{3072, 1542, 0xd193a960, 0}}
	b := h.Append(nil)
	if !bytes.Equal(b[:4], []byte{0xa4, 0x88, 0x0c, 0x4a}) {
		t.Fatalf("crc % x, want 0x4a0c88a4", b[:4])
	}
	g, err := ParseMDAHeader(b, 4096)
	if err != nil || *g != *h {
		t.Fatalf("%+v %v", g, err)
	}
	if _, err := ParseMDAHeader(b, 512); err == nil {
		t.Error("header accepted at another place")
	}
	for i := range b {
		c := bytes.Clone(b)
		c[i] ^= 0x80
		if _, err := ParseMDAHeader(c, 4096); err == nil {
			t.Fatalf("flip at %d accepted", i)
		}
	}
}

// TestRing walks many texts through a small ring: the new one never touches
// the committed one and never the header.
func TestRing(t *testing.T) {
	h := &MDAHeader{Start: 4096, Size: 512 + 16*512}
	for i := 0; i < 1000; i++ {
		size := uint64(1 + (i*7919)%int(h.MaxText()))
		off, err := h.Next(size)
		if err != nil {
			// Only possible when the old text is long and unlucky; a shorter
			// one must fit.
			size = 512
			if off, err = h.Next(size); err != nil {
				t.Fatal(i, err)
			}
		}
		if off < 512 || off%512 != 0 || off >= h.Size {
			t.Fatal("offset", off)
		}
		used := map[uint64]bool{}
		mark := func(l Locn, check bool) {
			a, b := h.Split(l.Offset, l.Size)
			for _, r := range []Area{a, b} {
				for p := r.Offset; p < r.Offset+r.Size; p++ {
					if p < h.Start+512 || p >= h.Start+h.Size {
						t.Fatal("outside", p)
					}
					if check && used[p] {
						t.Fatalf("step %d: new text overlaps the old one", i)
					}
					used[p] = true
				}
			}
		}
		if h.Committed.Offset != 0 {
			mark(h.Committed, false)
		}
		n := Locn{Offset: off, Size: size}
		mark(n, true)
		h.Committed = n
	}
}

func FuzzLabel(f *testing.F) {
	b, _ := sample().Append(nil)
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) >= 512 {
			// Give the fuzzer a valid checksum, or it never gets inside.
			b = bytes.Clone(b[:512])
			c := CRC(b[20:])
			b[16], b[17], b[18], b[19] = byte(c), byte(c>>8), byte(c>>16), byte(c>>24)
		}
		l, err := ParseLabel(b, 1)
		if err != nil {
			return
		}
		o, err := l.Append(nil)
		if err != nil {
			return
		}
		l2, err := ParseLabel(o, 1)
		if err != nil || !reflect.DeepEqual(l, l2) {
			t.Fatalf("%+v\n%+v\n%v", l, l2, err)
		}
	})
}

func FuzzMDAHeader(f *testing.F) {
	f.Add((&MDAHeader{Start: 4096, Size: 1044480, Committed: Locn{3072, 1542, 1, 0}}).Append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) >= 512 {
			b = bytes.Clone(b[:512])
			c := CRC(b[4:])
			b[0], b[1], b[2], b[3] = byte(c), byte(c>>8), byte(c>>16), byte(c>>24)
		}
		h, err := ParseMDAHeader(b, 4096)
		if err != nil {
			return
		}
		if n, err := h.Next(100); err == nil && (n < 512 || n >= h.Size) {
			t.Fatal(n)
		}
		h.Split(h.Committed.Offset, h.Committed.Size)
	})
}
