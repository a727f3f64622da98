package nvmetcp_test

import (
	"bytes"
	"encoding/hex"
	"strings"
	"testing"

	"softiser/internal/nvme"
	. "softiser/internal/nvmetcp"
)

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.NewReplacer(" ", "", "|", "").Replace(s))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Headers as Linux and SPDK send them.
func TestGolden(t *testing.T) {
	capsule := func(d Digests, data uint32) []byte {
		var c CapsuleCmd
		c.SetHeader(d, data, 0)
		return c[:CHLen]
	}
	data := func(ty Type, f Flags, d Digests, cccid, ttag uint16, off, n uint32) []byte {
		var h Data
		h.Set(ty, f, d, cccid, ttag, off, n, 0)
		return h[:]
	}
	var resp CapsuleResp
	resp.CQE().SetResult(1)
	resp.CQE().SetSQHead(1)
	resp.SetHeader(0)
	var refused CapsuleResp
	refused.CQE().SetResult(nvme.InvalidParameter(true, nvme.ConnectDataAtSubsystem))
	refused.CQE().SetStatus(nvme.ConnectInvalidParameters | nvme.DoNotRetry)
	refused.SetHeader(0)
	both := DigestHeader | DigestData
	for _, tt := range []struct {
		name string
		got  []byte
		want string
	}{
		{"Connect", capsule(0, 1024), "04004848 48040000"},
		{"Connect with digests", capsule(both, 1024), "0403484c 50040000"},
		{"a command without data", capsule(0, 0), "04004800 48000000"},
		{"Connect's answer", resp[:], "05001800 18000000 01000000 00000000 0100 0000 0000 0000"},
		{"Connect refused", refused[:], "05001800 18000000 00010100 00000000 0000 0000 0000 0483"},
		{"R2T with digests", data(TypeR2T, 0, both, 15, 4, 0, 0x4400), "09011800 1c000000 0f000400 00000000 00440000 00000000"},
		{"R2T", data(TypeR2T, 0, 0, 3, 3, 0, 0x10000), "09001800 18000000 03000300 00000000 00000100 00000000"},
		{"H2CData with digests", data(TypeH2CData, FlagLast, both, 15, 4, 0, 0x4400), "0607181c 20440000 0f000400 00000000 00440000 00000000"},
		{"C2HData", data(TypeC2HData, FlagLast, 0, 2, 0, 0, 4096), "07041818 18100000 02000000 00000000 00100000 00000000"},
		{"C2HData with success", data(TypeC2HData, FlagLast|FlagSuccess, 0, 2, 0, 0, 4096)[:CHLen], "070c1818 18100000"},
		{"C2HTermReq", (&TermReq{FES: FESDataLimit}).AppendTo(nil, TypeC2HTermReq), "03001800 18000000 05000000 0000 00000000000000000000"},
	} {
		if want := unhex(t, tt.want); !bytes.Equal(tt.got, want) {
			t.Errorf("%s:\n%x, want\n%x", tt.name, tt.got, want)
		}
	}
}

// Every alignment that a peer may ask for: the data begins where it says, behind
// header and digest.
func TestAlignment(t *testing.T) {
	for pda := range MaxPDA + 1 {
		for _, d := range []Digests{0, DigestHeader, DigestData, DigestHeader | DigestData} {
			align := (pda + 1) * 4
			var c CapsuleCmd
			c.SetHeader(d, 100, align)
			lay, f := c.CH().Check(&Limits{FromHost: true, Digests: d, MaxData: 100, Align: align})
			if f != nil {
				t.Fatal(f)
			}
			if lay.PDO%align != 0 || lay.PDO < CapsuleCmdLen+lay.Digest || lay.PDO >= CapsuleCmdLen+lay.Digest+align || lay.Data != 100 {
				t.Errorf("alignment %d, digests %s: %+v", align, d, lay)
			}
		}
	}
}

// What Check refuses, and with which fatal error.
func TestCheckRefuses(t *testing.T) {
	both := DigestHeader | DigestData
	for _, tt := range []struct {
		name   string
		header string
		limits Limits
		fes    FES
		fei    uint32
	}{
		{"a type that is not there", "08001800 18000000", Limits{}, FESInvalidHeader, 0},
		{"far beyond the types", "ff001800 18000000", Limits{}, FESInvalidHeader, 0},
		{"the other end's", "05001800 18000000", Limits{FromHost: true}, FESInvalidHeader, 0},
		{"short header", "05001700 18000000", Limits{}, FESInvalidHeader, 2},
		{"long header", "05001900 18000000", Limits{}, FESInvalidHeader, 2},
		{"no header digest", "05001800 18000000", Limits{Digests: DigestHeader}, FESInvalidHeader, 1},
		{"a header digest", "05011800 1c000000", Limits{}, FESInvalidHeader, 1},
		{"a digest in ICReq", "00018000 80000000", Limits{FromHost: true, Digests: both}, FESInvalidHeader, 1},
		{"shorter than its header", "05001800 17000000", Limits{}, FESInvalidHeader, 4},
		{"shorter than header and digest", "05011800 18000000", Limits{Digests: DigestHeader}, FESInvalidHeader, 4},
		{"data in a response", "05001818 19000000", Limits{MaxData: 9}, FESInvalidHeader, 4},
		{"data in ICReq", "00008080 88000000", Limits{FromHost: true, MaxData: 9}, FESInvalidHeader, 4},
		{"data digest of nothing", "05021800 18000000", Limits{Digests: DigestData}, FESInvalidHeader, 1},
		{"data in the header", "07041814 20000000", Limits{MaxData: 100}, FESInvalidHeader, 3},
		{"data in the digest", "07051818 28000000", Limits{MaxData: 100, Digests: DigestHeader}, FESInvalidHeader, 3},
		{"data at an odd place", "07041819 28000000", Limits{MaxData: 100}, FESInvalidHeader, 3},
		{"data not aligned", "0704181c 28000000", Limits{MaxData: 100, Align: 8}, FESInvalidHeader, 3},
		{"data behind the end", "0704181c 1c000000", Limits{MaxData: 100}, FESInvalidHeader, 4},
		{"no data before the digest", "07061818 1c000000", Limits{MaxData: 100, Digests: DigestData}, FESInvalidHeader, 4},
		{"no data digest", "07041818 28000000", Limits{MaxData: 100, Digests: DigestData}, FESInvalidHeader, 1},
		{"a data digest", "07061818 28000000", Limits{MaxData: 100}, FESInvalidHeader, 1},
		{"too much data", "07041818 19040000", Limits{MaxData: 1024}, FESDataLimit, 0},
		{"as much data as can be said", "07041818 ffffffff", Limits{MaxData: 1024}, FESDataLimit, 0},
		{"a long TermReq", "03001818 99000000", Limits{}, FESInvalidHeader, 4},
	} {
		h := (*CH)(unhex(t, tt.header))
		if _, f := h.Check(&tt.limits); f == nil {
			t.Errorf("%s: is let through", tt.name)
		} else if f.FES != tt.fes || f.FEI != tt.fei {
			t.Errorf("%s: %s at %d, want %s at %d", tt.name, f.FES, f.FEI, tt.fes, tt.fei)
		}
	}
}

func TestICRefuses(t *testing.T) {
	good := (&ICReq{Digests: DigestData, MaxR2T: 3, HPDA: 5}).AppendTo(nil)
	if r, f := ParseICReq(good); f != nil || r != (ICReq{Digests: DigestData, MaxR2T: 3, HPDA: 5}) {
		t.Fatalf("%+v, %v", r, f)
	}
	for _, tt := range []struct {
		name string
		at   int
		to   byte
		fes  FES
		fei  uint32
	}{
		{"another PDU first", 0, byte(TypeCapsuleCmd), FESSequence, 0},
		{"format 1", 8, 1, FESUnsupported, 8},
		{"alignment 33", 10, 32, FESInvalidHeader, 10},
		{"unknown digest", 11, 4, FESInvalidHeader, 11},
		{"length", 4, 0x7F, FESInvalidHeader, 4},
	} {
		b := bytes.Clone(good)
		b[tt.at] = tt.to
		if _, f := ParseICReq(b); f == nil || f.FES != tt.fes || f.FEI != tt.fei {
			t.Errorf("%s: %+v, want %s at %d", tt.name, f, tt.fes, tt.fei)
		}
	}
	if _, f := ParseICResp((&ICResp{MaxH2CData: MinH2CData - 1}).AppendTo(nil)); f == nil || f.FEI != 12 {
		t.Errorf("ICResp with less than %d bytes: %v", MinH2CData, f)
	}
	if r, f := ParseICResp((&ICResp{MaxH2CData: MinH2CData, CPDA: 31}).AppendTo(nil)); f != nil || r.CPDA != 31 {
		t.Errorf("%+v, %v", r, f)
	}
	if _, f := ParseICReq(good[:ICLen-1]); f == nil {
		t.Error("a short ICReq is let through")
	}
}

func TestTermReq(t *testing.T) {
	long := bytes.Repeat([]byte{7}, 200)
	b := (&TermReq{FESInvalidHeader, 0x01020304, long}).AppendTo(nil, TypeH2CTermReq)
	lay, f := (*CH)(b).Check(&Limits{FromHost: true, Digests: DigestHeader | DigestData})
	if f != nil || lay.Data != MaxTermData || len(b) != TermLen+MaxTermData {
		t.Fatalf("%+v, %v, %d bytes", lay, f, len(b))
	}
	r, err := ParseTermReq(b)
	if err != nil || r.FES != FESInvalidHeader || r.FEI != 0x01020304 || !bytes.Equal(r.Header, long[:MaxTermData]) {
		t.Errorf("%+v, %v", r, err)
	}
	if _, err := ParseTermReq(append(b, 0)); err == nil {
		t.Error("a TermReq that is too long is read")
	}
}

// No header leads outside of its PDU.
func FuzzCheck(f *testing.F) {
	f.Add([]byte{7, 4, 24, 24, 24, 16, 0, 0}, uint8(0), uint8(0), false)
	f.Add([]byte{4, 3, 72, 76, 0x50, 4, 0, 0}, uint8(3), uint8(0), true)
	f.Add([]byte{2, 0, 24, 24, 0x98, 0, 0, 0}, uint8(3), uint8(31), true)
	f.Fuzz(func(t *testing.T, b []byte, d, pda uint8, fromHost bool) {
		if len(b) < CHLen {
			return
		}
		h := (*CH)(b)
		const most = 1 << 20
		lay, fault := h.Check(&Limits{FromHost: fromHost, Digests: Digests(d & 3), MaxData: most, Align: (int(pda&31) + 1) * 4})
		if fault != nil {
			return
		}
		end := uint64(lay.HLen + lay.Digest)
		if lay.Data > 0 {
			if uint64(lay.PDO) < end || lay.Data > most {
				t.Fatalf("%x: %+v", b[:CHLen], lay)
			}
			end = uint64(lay.PDO) + uint64(lay.Data) + uint64(lay.DDigest)
		}
		if end != uint64(h.PLen()) {
			t.Fatalf("%x: %+v ends at %d", b[:CHLen], lay, end)
		}
	})
}
