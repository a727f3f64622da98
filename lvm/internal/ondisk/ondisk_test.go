package ondisk

import (
	"bytes"
	"encoding/binary"
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
	const all = "0!#9" + "az" + "AZ" + "bcdefghijklmnopqrstuvwxy"
	if p, err := ParseUUID(all); err != nil || string(p[:]) != all {
		t.Errorf("%s: %v", all, err)
	}
	for _, c := range "/:`{@[\"$\x00" {
		if _, err := ParseUUID(all[:31] + string(c)); err == nil {
			t.Errorf("%q is taken for a character of a UUID", c)
		}
	}
	seen := map[byte]bool{}
	for range 100 {
		for _, c := range NewUUID() {
			seen[c] = true
		}
	}
	if len(seen) != len(uuidAlphabet) { // one is missing once in 10^21 times
		t.Errorf("random UUIDs have %d characters", len(seen))
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

// A label may lie in any of the first four sectors; a damaged one is an error only when no other is good.
func TestFindLabel(t *testing.T) {
	at := func(s int) []byte {
		l := sample()
		l.Sector = s
		b, err := l.Append(make([]byte, s*SectorSize))
		if err != nil {
			t.Fatal(err)
		}
		return append(b, make([]byte, (ScanSectors-s)*SectorSize)...)
	}
	for s := range ScanSectors {
		if l, err := FindLabel(at(s)); err != nil || l.Sector != s || l.UUID != sample().UUID {
			t.Errorf("in sector %d: %+v, %v", s, l, err)
		}
	}
	for _, cut := range []int{0, SectorSize - 1, 2*SectorSize - 1} {
		if _, err := FindLabel(at(1)[:cut]); !errors.Is(err, ErrNoLabel) {
			t.Errorf("a device of %d bytes: %v", cut, err)
		}
	}
	if l, err := FindLabel(at(1)[:2*SectorSize]); err != nil || l.Sector != 1 {
		t.Errorf("in the last sector of a device: %v", err)
	}
	if _, err := FindLabel(at(ScanSectors)); !errors.Is(err, ErrNoLabel) {
		t.Errorf("in the fifth sector: %v", err)
	}
	two := at(3)
	bad := at(1)[SectorSize : 2*SectorSize]
	bad[40] ^= 1
	copy(two[SectorSize:], bad)
	if l, err := FindLabel(two); err != nil || l.Sector != 3 {
		t.Errorf("behind a damaged one: %v", err)
	}
	copy(two[3*SectorSize:], make([]byte, SectorSize))
	if _, err := FindLabel(two); !errors.Is(err, ErrChecksum) {
		t.Errorf("a damaged one alone: %v", err)
	}
	for name, i := range map[string]int{"LABELONE": 0, "the type of LVM2": 24} {
		other := at(1)
		other[SectorSize+i] ^= 1
		if _, err := FindLabel(other); !errors.Is(err, ErrNoLabel) {
			t.Errorf("without %s: %v", name, err)
		}
		if _, err := ParseLabel(other[SectorSize:2*SectorSize], 1); !errors.Is(err, ErrNoLabel) {
			t.Errorf("without %s: %v", name, err)
		}
	}
	if _, err := ParseLabel(at(0)[:SectorSize-1], 0); !errors.Is(err, ErrNoLabel) {
		t.Errorf("less than a sector: %v", err)
	}
}

// As many areas as the sector has room for come back; lists that do not end in it are refused, an
// extension may be missing, or be of no version.
func TestLabelAreas(t *testing.T) {
	full := sample()
	full.Meta = nil
	for len(full.Meta) < (SectorSize-labelContents-40-8)/16-3-1 {
		full.Meta = append(full.Meta, Area{Offset: uint64(1 + len(full.Meta)), Size: 7})
	}
	b, err := full.Append(nil)
	if err != nil {
		t.Fatal(err)
	}
	if l, err := ParseLabel(b, 1); err != nil || !reflect.DeepEqual(l, full) {
		t.Errorf("%+v, %v", l, err)
	}
	full.Boot = []Area{{Offset: 1}}
	if _, err := full.Append(nil); !errors.Is(err, ErrFormat) {
		t.Errorf("one more: %v", err)
	}
	sum := func(b []byte) []byte {
		binary.LittleEndian.PutUint32(b[16:], CRC(b[20:]))
		return b
	}
	const lists = labelContents + 40
	for name, from := range map[string]int{"data areas": lists, "metadata areas": lists + 32, "bootloader areas": lists + 64 + 8} {
		b, _ := sample().Append(nil)
		for i := from; i < SectorSize; i++ {
			b[i] = 1
		}
		if _, err := ParseLabel(sum(b), 1); !errors.Is(err, ErrFormat) {
			t.Errorf("%s without an end: %v", name, err)
		}
	}
	old := sample()
	old.ExtVersion, old.ExtFlags = 0, 0
	b, _ = old.Append(nil)
	if l, err := ParseLabel(b, 1); err != nil || !reflect.DeepEqual(l, old) {
		t.Errorf("without an extension: %+v, %v", l, err)
	}
	b[lists+64+4] = PVInUse
	if l, err := ParseLabel(sum(b), 1); err != nil || l.ExtFlags != 0 {
		t.Errorf("an extension of version 0: %+v, %v", l, err)
	}
	b, _ = sample().Append(nil)
	b[labelContents] = '-'
	if _, err := ParseLabel(sum(b), 1); !errors.Is(err, ErrFormat) {
		t.Errorf("no UUID: %v", err)
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
