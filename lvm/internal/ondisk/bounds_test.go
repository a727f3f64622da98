package ondisk

import (
	"encoding/binary"
	"testing"
)

// TestBounds: sectors whose checksums are right, but that point outside.
func TestBounds(t *testing.T) {
	const start, size = 4096, 1 << 20
	for name, h := range map[string]MDAHeader{
		"an area without room":          {Start: start, Size: MDAHeaderLen},
		"an area of half a sector":      {Start: start, Size: size + 256},
		"a text in the header":          {Start: start, Size: size, Committed: Locn{Offset: 100, Size: 10}},
		"a text behind the end":         {Start: start, Size: size, Committed: Locn{Offset: size, Size: 10}},
		"a text longer than its ring":   {Start: start, Size: size, Committed: Locn{Offset: 512, Size: size - MDAHeaderLen + 1}},
		"a precommitted one, of course": {Start: start, Size: size, Precommit: Locn{Offset: 100, Size: 10}},
	} {
		if _, err := ParseMDAHeader(h.Append(nil), start); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
	h := MDAHeader{Start: start, Size: size}
	if _, err := h.Next(h.MaxText()); err != nil {
		t.Error(err)
	}
	if _, err := h.Next(h.MaxText() + 1); err == nil {
		t.Error("a text that leaves no room for the next was accepted")
	}
	// The new text must not reach the old one.
	h.Committed = Locn{Offset: 512 + 4096, Size: h.MaxText()}
	ring := h.Size - MDAHeaderLen
	room := ring - (h.MaxText()+511)/512*512
	for _, n := range []uint64{room, room + 1} {
		if n > h.MaxText() {
			continue
		}
		if _, err := h.Next(n); (err == nil) != (n == room) {
			t.Errorf("a text of %d bytes where %d are free: %v", n, room, err)
		}
	}
	// Nor one that another program has left longer than ours ever are, from either side
	// of the end of the ring.
	for _, at := range []uint64{0, 4096, ring - 512, ring - 8192} {
		h.Committed = Locn{Offset: 512 + at, Size: ring - 4096}
		for n, fits := range map[uint64]bool{4096: true, 4097: false, 8192: false} {
			off, err := h.Next(n)
			if (err == nil) != fits {
				t.Errorf("old text at %d: a text of %d bytes where 4096 are free: %v", at, n, err)
			}
			if want := 512 + (at+ring-4096)%ring; err == nil && off != want {
				t.Errorf("old text at %d: the new one goes to %d, not to %d", at, off, want)
			}
		}
	}

	for _, off := range []uint32{0, labelContents - 1, SectorSize - 39, SectorSize, 1 << 31} {
		l := Label{Sector: 1, UUID: NewUUID(), DevSize: 1 << 30, Data: []Area{{Offset: 1 << 20}}}
		b, err := l.Append(nil)
		if err != nil {
			t.Fatal(err)
		}
		binary.LittleEndian.PutUint32(b[20:], off)
		binary.LittleEndian.PutUint32(b[16:], CRC(b[20:]))
		if _, err := ParseLabel(b, 1); err == nil {
			t.Errorf("a PV header at offset %d was accepted", off)
		}
	}
}
