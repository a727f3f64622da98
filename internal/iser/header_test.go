package iser

import (
	"bytes"
	"encoding/hex"
	"errors"
	"testing"

	"softiser/internal/iscsi"
	"softiser/internal/pcaptest"
)

// A READ as the Linux initiator sends it, and Hello messages by the RFC.
func TestHeaderGoldenBytes(t *testing.T) {
	h := header{stags: stags{ReadSTag: 0xb211c028, ReadBase: 0xffff88800789b000}, rsv: true}
	const golden = "14000000" + "00000000" + "0000000000000000" + "b211c028" + "ffff88800789b000"
	b := h.append(nil)
	if got := hex.EncodeToString(b); got != golden {
		t.Fatalf("encoded %s, want %s", got, golden)
	}
	var back header
	back.parse(b)
	if back != h {
		t.Fatalf("decoded %+v", back)
	}
	// Without its valid bit a field means nothing, whatever it holds.
	b[0] = typeControl
	if back.parse(b); back != (header{}) {
		t.Fatalf("decoded %+v", back)
	}
	for _, c := range []struct {
		h    hello
		want string
	}{
		{hello{maxVer: 10, ver: 10, depth: 128}, "20aa0080"},
		{hello{reply: true, maxVer: 10, ver: 10, depth: 32}, "30aa0020"},
		{hello{reply: true, reject: true, maxVer: 10, ver: 10}, "31aa0000"},
	} {
		b := c.h.append(nil)
		if got := hex.EncodeToString(b); got != c.want+"000000000000000000000000000000000000000000000000" {
			t.Errorf("%+v encoded %s", c.h, got)
		}
		var back hello
		if back.parse(b); back != c.h {
			t.Errorf("decoded %+v, want %+v", back, c.h)
		}
	}
}

func TestPrivateData(t *testing.T) {
	if hex.EncodeToString(privateData(true)) != "80000000" || hex.EncodeToString(privateData(false)) != "c0000000" {
		t.Error("encoded")
	}
	for s, want := range map[string]bool{"": false, "80000000": true, "c0000000": false, "00": true, "40": false} {
		b, _ := hex.DecodeString(s)
		if allowsInvalidate(b) != want {
			t.Errorf("%q: %v", s, !want)
		}
	}
}

// Messages of any bytes: no panic, and parts only from inside the message.
func FuzzSplit(f *testing.F) {
	var p iscsi.BHS
	p.NewSCSICommand().SetDataLen(3)
	h := header{wsv: true, stags: stags{WriteSTag: 1}}
	f.Add(append(append(h.append(nil), p[:]...), 1, 2, 3, 0))
	f.Add([]byte{0x20, 0xaa})
	for _, c := range pcaptest.Open(f, "iser-siw-unsol") {
		if !bytes.HasPrefix(c.C2S, []byte("MPA ID Req Frame")) {
			continue
		}
		_, ms := pcaptest.Messages(c.C2S)
		for _, m := range ms[:min(len(ms), 40)] {
			f.Add(m.Payload)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		h, bhs, ahs, data, err := split(b)
		if err != nil {
			return
		}
		n := HeaderLen + iscsi.BHSLen + len(ahs) + len(data)
		if len(ahs) != bhs.AHSLen() || len(data) != bhs.DataLen() || n > len(b) || len(b)-n > 3 {
			t.Fatalf("%d bytes: AHS %d, data %d", len(b), len(ahs), len(data))
		}
		var again header
		if again.parse(h.append(nil)); again != h {
			t.Fatalf("%+v became %+v", h, again)
		}
	})
}

// TestSplitAnnouncedOnly: the WRITE(10) of qemu with libiscsi 1.19, as captured:
// DataSegmentLength 4096, no data, Write STag and Base Offset of its first byte.
func TestSplitAnnouncedOnly(t *testing.T) {
	b, err := hex.DecodeString("18000000c627570000007f6a048b0010" + "000000000000000000000000" +
		"01a100000000100000000000000000003beb811e000010001a5deb7c0000000d2a080000000000000800000000000000")
	if err != nil {
		t.Fatal(err)
	}
	h, bhs, ahs, data, err := split(b)
	if err != nil {
		t.Fatal(err)
	}
	if len(ahs) != 0 || len(data) != 0 || bhs.DataLen() != 0 {
		t.Errorf("%d bytes of AHS, %d of data, DataSegmentLength %d; want none", len(ahs), len(data), bhs.DataLen())
	}
	if !h.wsv || h.WriteSTag != 0xc6275700 || h.WriteBase != 0x7f6a048b0010 {
		t.Errorf("header %+v", h)
	}
	// Half of the announced data is still a malformed message, and so is none at
	// all when there is no STag to fetch it from.
	bhs.SetDataLen(4096)
	if _, _, _, _, err := split(append(bytes.Clone(b), make([]byte, 2048)...)); !errors.Is(err, errFormat) {
		t.Errorf("half of the data: %v", err)
	}
	b[0] = typeControl
	if _, _, _, _, err := split(b); !errors.Is(err, errFormat) {
		t.Errorf("no data and no STag: %v", err)
	}
}

// refOf is the Ref of a command that advertised s.
func refOf(s stags) *iscsi.Ref {
	r := s.ref()
	return &r
}

// What a header advertises comes back whole from the Ref that goes through the layers
// above.
func TestRef(t *testing.T) {
	s := stags{WriteSTag: 0xf1234567, ReadSTag: 0x89abcdef, WriteBase: 0x8000000000000001, ReadBase: 0xffff88800789b000}
	if got := stagsOf(refOf(s)); got != s {
		t.Errorf("%+v, want %+v", got, s)
	}
	if got := stagsOf(nil); got != (stags{}) {
		t.Errorf("no command: %+v", got)
	}
}
