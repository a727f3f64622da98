package wire

import (
	"bytes"
	"encoding/hex"
	"strconv"
	"strings"
	"testing"
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Complete FPDUs with their CRCs. The first is figure 5 of RFC 5044 without its
// marker; the others are what Linux siw sends.
func TestFPDUBytes(t *testing.T) {
	send := func(op Opcode, inv uint32, payload []byte) []byte {
		h := Untagged{Ctrl: Ctrl(op, true), Inv: inv, MSN: 1}
		return append(h.Append(nil), payload...)
	}
	tagged := func(op Opcode, stag uint32) []byte {
		h := Tagged{Ctrl: Ctrl(op, true), STag: stag}
		return h.Append(nil)
	}
	rreq := func() []byte {
		h := Untagged{Ctrl: Ctrl(ReadRequest, true), QN: QNRead, MSN: 1}
		r := ReadReq{SrcSTag: 1}
		return r.Append(h.Append(nil))
	}
	for _, tt := range []struct {
		name  string
		ulpdu []byte
		want  string
	}{
		{"Send of 24 zero bytes", send(Send, 0, make([]byte, 24)), "002a 4143 00000000 00000000 00000001 00000000" + strings.Repeat("00", 24) + "b7243ec3"},
		{"Write as RTR", tagged(Write, 1), "000ec140 00000001 0000000000000000 ebd34c5f"},
		{"Read as RTR", rreq(), "002e4141 00000000 00000001 00000001 00000000 00000000 0000000000000000 00000000 00000001 0000000000000000 ba10e3c9"},
		{"its Response", tagged(ReadResponse, 0), "000ec142 00000000 0000000000000000 6975d6ca"},
		{"Send with pad", send(Send, 0, []byte("hello")), "00174143 00000000 00000000 00000001 00000000 68656c6c6f 000000 b990b10c"},
		{"empty Send with Invalidate", send(SendInv, 0x12345678, nil), "00124144 12345678 00000000 00000001 00000000 acf1b4f7"},
	} {
		if got, want := AppendFPDU(nil, tt.ulpdu, true), unhex(t, tt.want); !bytes.Equal(got, want) {
			t.Errorf("%s:\n%x, want\n%x", tt.name, got, want)
		}
	}
}

// RFC 5044 figure 5 begins with a marker, which the CRC covers.
func TestCRCWithMarker(t *testing.T) {
	b := unhex(t, "00000000 002a 4143 00000000 00000000 00000001 00000000"+strings.Repeat("00", 24))
	if got := AppendCRC(nil, CRC(0, b)); !bytes.Equal(got, unhex(t, "52239983")) {
		t.Errorf("CRC %x, want 52239983", got)
	}
	// Without C the field is there all the same, and zero, as siw sends it.
	if got := AppendFPDU(nil, []byte("hello"), false); !bytes.Equal(got, unhex(t, "0005 68656c6c6f 00 00000000")) {
		t.Errorf("FPDU without CRC %x", got)
	}
	if got := CRC(0, []byte("123456789")); got != 0xe3069283 {
		t.Errorf("CRC32C of the check string is %08x", got)
	}
}

func TestControlWords(t *testing.T) {
	for _, tt := range []struct {
		op   Opcode
		last bool
		want Control
	}{
		{Send, true, 0x4143}, {Send, false, 0x0143}, {SendInv, true, 0x4144}, {SendSE, true, 0x4145}, {SendSEInv, true, 0x4146},
		{Write, true, 0xc140}, {Write, false, 0x8140}, {ReadRequest, true, 0x4141},
		{ReadResponse, true, 0xc142}, {ReadResponse, false, 0x8142}, {Terminate, true, 0x4147},
		{Immediate, true, 0x4148}, {ImmediateSE, true, 0x4149}, {AtomicReq, true, 0x414a}, {AtomicResp, true, 0x414b},
	} {
		c := Ctrl(tt.op, tt.last)
		if c != tt.want {
			t.Errorf("%v last=%v: %04x, want %04x", tt.op, tt.last, uint16(c), uint16(tt.want))
		}
		if c.Op() != tt.op || c.Last() != tt.last || c.Tagged() != Ops[tt.op].Tagged || c.DV() != 1 || c.RV() != 1 {
			t.Errorf("%04x is read as %v", uint16(c), c.Op())
		}
	}
}

func TestHeaderLengths(t *testing.T) {
	var (
		r ReadReq
		a Atomic
		p AtomicReply
	)
	if n := len(r.Append(nil)); n != ReadReqLen {
		t.Errorf("Read Request header: %d bytes", n)
	}
	if n := len(a.Append(nil)); n != AtomicReqLen {
		t.Errorf("Atomic Request header: %d bytes", n)
	}
	if n := len(p.Append(nil)); n != AtomicRespLen {
		t.Errorf("Atomic Response header: %d bytes", n)
	}
	// RFC 5040 and RFC 7306: whole ULPDUs.
	if Ops[ReadRequest].Hdr != 46 || Ops[AtomicReq].Hdr != 70 || Ops[AtomicResp].Hdr != 30 || Ops[Immediate].Hdr != 26 {
		t.Error("ULPDU lengths differ from the RFCs'")
	}
}

func TestPad(t *testing.T) {
	for n := range 70000 {
		p := Pad(n)
		if p < 0 || p > 3 || (LenField+n+p)%4 != 0 || FPDULen(n) != 2+n+p+4 {
			t.Fatalf("Pad(%d) = %d", n, p)
		}
	}
}

func TestTerminateForms(t *testing.T) {
	for _, tt := range []struct {
		name, in string
		cause    Cause
		siw      bool
	}{
		{"RFC, insufficient IRD", "20060000", CauseInsufficient, false},
		{"siw, insufficient IRD, reads as the RFC's unexpected opcode", "02060000", CauseOpcode, false},
		{"siw, bad CRC", "02020000", CauseCRC, true},
		{"RFC, bad CRC", "20020000", CauseCRC, false},
		{"siw, tagged, invalid STag, with header", "11000300 0010 c140deadbe000000000000001000", CauseSTag, true},
		{"RFC, the same", "1100c000 001e c140deadbe000000000000001000", CauseSTag, false},
		{"siw, no buffer", "21020300 0010 414300000000000000000000000100000000", CauseNoBuffer, true},
		{"RFC, too long", "1205c000 0010 414300000000000000000000000100000000", CauseTooLong, false},
		{"siw, Read of an unknown STag", "10000700 001c 4141000000000000000100000001 00000000" + strings.Repeat("ab", 28), CauseRemoteSTag, true},
		{"siw, that Read's header alone", "10000400" + strings.Repeat("ab", 28), CauseRemoteSTag, true},
		{"siw, local", "00ff0000", CauseLocal, false},
		{"RFC by its header bits, a code that no RFC has", "0202c000 001e c140deadbe000000000000001000", Cause(0x0202), false},
		{"siw, unexpected opcode without header bits reads as the RFC's", "20060000", CauseInsufficient, false},
	} {
		b := unhex(t, tt.in)
		var term Term
		if err := term.Parse(b); err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		if term.Cause != tt.cause || term.SIW != tt.siw {
			t.Errorf("%s: %v siw=%v, want %v siw=%v", tt.name, term.Cause, term.SIW, tt.cause, tt.siw)
		}
		if got := term.Append(nil); !bytes.Equal(got, b) {
			t.Errorf("%s: encoded as %x, was %x", tt.name, got, b)
		}
	}
	if err := new(Term).Parse([]byte{0, 0, 0}); err == nil {
		t.Error("three bytes are taken for a Terminate")
	}
}

// RFC 7306 §5.1: masked operations on fields.
// A Terminate that was cut short gives what is there, and one that says nothing of a header has none,
// whatever follows. The reserved bits beside M, D and R mean nothing (RFC 5040 §4.8).
func TestTerminateParts(t *testing.T) {
	const (
		tagged   = "c140deadbe000000000000001000"
		untagged = "414100000000000000010000000100000000"
	)
	request := strings.Repeat("ab", ReadReqLen)
	for _, tt := range []struct {
		name, in, ddp, rdmap string
		segLen               int // -1: none
		siw                  bool
	}{
		{"M alone", "11008000 001e" + tagged, "", "", 0x1e, false},
		{"D alone", "11004000" + tagged, tagged, "", -1, false},
		{"R alone", "11002000" + request, "", request, -1, false},
		{"none", "11000000" + tagged, "", "", -1, false},
		{"reserved bits, D", "11005f00" + tagged, tagged, "", -1, false},
		{"reserved bits, M", "11009f00 001e" + tagged, "", "", 0x1e, false},
		{"no room for the segment length", "1100e000 00", "", "", -1, false},
		{"the segment length alone", "1100e000 001e", "", "", 0x1e, false},
		{"half a DDP header", "1100e000 001e" + tagged[:26], "", "", 0x1e, false},
		{"half an RDMAP header", "0100e000 002e" + untagged + request[2:], untagged, "", 0x2e, false},
		{"all of it", "0100e000 002e" + untagged + request, untagged, request, 0x2e, false},
		{"M and D, and something behind", "0100c000 002e" + untagged + request, untagged, "", 0x2e, false},
		{"reserved bits, M and D", "0100df00 002e" + untagged + request, untagged, "", 0x2e, false},
		{"siw, M alone", "11000100 0010" + tagged, "", "", 0x10, true},
		{"siw, D alone", "11000200" + tagged, tagged, "", -1, true},
		{"siw, R alone", "11000400" + request, "", request, -1, true},
		{"siw, reserved bits, D", "11001a00" + tagged, tagged, "", -1, true},
		{"a cause that neither order has", "35440000", "", "", -1, false},
	} {
		term := Term{HasLen: true, SegLen: 1, DDP: []byte{1}, RDMAP: []byte{2}, SIW: true} // of the one before
		if err := term.Parse(unhex(t, tt.in)); err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		if term.SIW != tt.siw || term.HasLen != (tt.segLen >= 0) || int(term.SegLen) != max(tt.segLen, 0) ||
			!bytes.Equal(term.DDP, unhex(t, tt.ddp)) || !bytes.Equal(term.RDMAP, unhex(t, tt.rdmap)) {
			t.Errorf("%s: %+v", tt.name, term)
		}
	}
}

// Headers of RFC 7306 §5, each byte of them another.
func TestAtomicHeaders(t *testing.T) {
	req := Atomic{Op: CmpSwap, ID: 0x10111213, STag: 0x20212223, TO: 0x3031323334353637, Data: 0x4041424344454647,
		Mask: 0x5051525354555657, Compare: 0x6061626364656667, CompareMask: 0x7071727374757677}
	want := unhex(t, "00000002 10111213 20212223 3031323334353637 4041424344454647 5051525354555657 6061626364656667 7071727374757677")
	var got Atomic
	got.Parse(append([]byte{0xff, 0xff, 0xff, 0xf2}, want[4:]...)) // the other 28 bits are reserved
	if b := req.Append(nil); !bytes.Equal(b, want) || got != req {
		t.Errorf("Atomic Request: %x, want %x; read as %+v", b, want, got)
	}
	resp := AtomicReply{ID: 0x10111213, Value: 0x2021222324252627}
	want = unhex(t, "10111213 2021222324252627")
	var back AtomicReply
	back.Parse(want)
	if b := resp.Append(nil); !bytes.Equal(b, want) || back != resp {
		t.Errorf("Atomic Response: %x, want %x; read as %+v", b, want, back)
	}
}

func TestAtomicApply(t *testing.T) {
	for _, tt := range []struct {
		name string
		op   Atomic
		old  uint64
		want uint64
	}{
		{"add", Atomic{Op: FetchAdd, Data: 5}, 10, 15},
		{"add wraps", Atomic{Op: FetchAdd, Data: 2}, ^uint64(0), 1},
		{"two fields of 32 bits, no carry between", Atomic{Op: FetchAdd, Data: 0x00000001_00000001, Mask: 0x80000000_80000000}, 0x00000005_ffffffff, 0x00000006_00000000},
		{"eight fields", Atomic{Op: FetchAdd, Data: 0x0101010101010101, Mask: 0x8080808080808080}, 0xff7f00ff7f00ff7f, 0x0080010080010080},
		{"swap", Atomic{Op: CmpSwap, Data: 9, Mask: ^uint64(0), Compare: 3, CompareMask: ^uint64(0)}, 3, 9},
		{"no swap", Atomic{Op: CmpSwap, Data: 9, Mask: ^uint64(0), Compare: 3, CompareMask: ^uint64(0)}, 4, 4},
		{"masked swap", Atomic{Op: CmpSwap, Data: 0xabcd, Mask: 0xff, Compare: 0x1200, CompareMask: 0xff00}, 0x1234, 0x12cd},
	} {
		if got := tt.op.Apply(tt.old); got != tt.want {
			t.Errorf("%s: %#x, want %#x", tt.name, got, tt.want)
		}
	}
}

func TestNames(t *testing.T) {
	if s := Opcode(13).String(); s != "unknown RDMAP opcode d" {
		t.Error(s)
	}
	if s := CauseCRC.String(); s != "MPA: CRC mismatch (2/0/02)" {
		t.Error(s)
	}
	if s := MakeCause(7, 3, 0x44).String(); s != "layer 7: error type 3, code 44" {
		t.Error(s)
	}
}

func FuzzTerminate(f *testing.F) {
	f.Add([]byte{0x11, 0, 3, 0, 0, 0x10, 0xc1, 0x40})
	f.Add(bytes.Repeat([]byte{0xff}, MaxTermLen))
	f.Fuzz(func(t *testing.T, b []byte) {
		var term Term
		if term.Parse(b) != nil {
			return
		}
		var again Term
		if err := again.Parse(term.Append(nil)); err != nil {
			t.Fatal(err)
		}
		if again.Cause.Code() != term.Cause.Code() || !bytes.Equal(again.DDP, term.DDP) || !bytes.Equal(again.RDMAP, term.RDMAP) {
			t.Fatalf("%+v became %+v", term, again)
		}
		_ = term.Cause.String()
	})
}

func FuzzHeaders(f *testing.F) {
	f.Add(bytes.Repeat([]byte{0x41}, AtomicReqLen))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < AtomicReqLen {
			return
		}
		var (
			tg Tagged
			u  Untagged
			r  ReadReq
			p  AtomicReply
		)
		tg.Parse(b)
		u.Parse(b)
		r.Parse(b)
		p.Parse(b)
		for _, x := range [][]byte{tg.Append(nil), u.Append(nil), r.Append(nil), p.Append(nil)} {
			if !bytes.Equal(x, b[:len(x)]) {
				t.Fatalf("%x became %x", b[:len(x)], x)
			}
		}
		_ = u.Ctrl.Op().String()
	})
}

// CRC32c over what an FPDU covers: a header alone, a segment of Ethernet, a
// block, a large FPDU.
func BenchmarkCRC(b *testing.B) {
	for _, n := range []int{20, 1440, 4096, 64 << 10} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			p := make([]byte, n)
			b.SetBytes(int64(n))
			b.ReportAllocs()
			for b.Loop() {
				CRC(0, p)
			}
		})
	}
}

func BenchmarkTagged(b *testing.B) {
	buf := make([]byte, 0, 64)
	h := Tagged{Ctrl: Ctrl(Write, true), STag: 0x123456, TO: 1 << 40}
	b.ReportAllocs()
	for b.Loop() {
		buf = h.Append(buf[:0])
		h.Parse(buf)
	}
}

func BenchmarkUntagged(b *testing.B) {
	buf := make([]byte, 0, 64)
	h := Untagged{Ctrl: Ctrl(SendInv, true), Inv: 0x123456, MSN: 7}
	b.ReportAllocs()
	for b.Loop() {
		buf = h.Append(buf[:0])
		h.Parse(buf)
	}
}

func BenchmarkReadRequest(b *testing.B) {
	buf := make([]byte, 0, 64)
	r := ReadReq{SinkSTag: 1, SinkTO: 1 << 40, Size: 4096, SrcSTag: 2, SrcTO: 1 << 41}
	b.ReportAllocs()
	for b.Loop() {
		buf = r.Append(buf[:0])
		r.Parse(buf)
	}
}
