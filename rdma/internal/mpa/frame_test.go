package mpa

import (
	"bytes"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"testing/iotest"

	"softiser/rdma/internal/wire"
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

const (
	reqHex = "4d504120494420526571204672616d65"
	repHex = "4d504120494420526570204672616d65"
)

// Frames as Linux siw sends them: our own wishes give the same bytes.
func TestFramesLikeSIW(t *testing.T) {
	iser := []byte{0x80, 0, 0, 0}
	for _, tt := range []struct {
		name       string
		init, resp Wish
		req, rep   string
		ird, ord   int // of the initiator afterwards
		rird, rord int // of the responder
		crc, gso   bool
		rtr        RTR
	}{
		{"rping", Wish{CRC: CRCOffered, IRD: 1, ORD: 1}, Wish{CRC: CRCOffered, IRD: 1, ORD: 1},
			"10 02 0004 0001 0001", "10 02 0004 0001 0001", 1, 1, 1, 1, false, false, 0},
		{"rping, CRC", Wish{IRD: 1, ORD: 1}, Wish{IRD: 1, ORD: 1},
			"50 02 0004 0001 0001", "50 02 0004 0001 0001", 1, 1, 1, 1, true, false, 0},
		{"peer-to-peer", Wish{CRC: CRCOffered, IRD: 1, ORD: 1, P2P: RTRWrite | RTRRead}, Wish{CRC: CRCOffered, IRD: 1, ORD: 1},
			"10 02 0004 8001 c001", "10 02 0004 8001 8001", 1, 1, 1, 1, false, false, RTRWrite},
		{"revision 1", Wish{Rev: 1, CRC: CRCOffered, IRD: 1, ORD: 1, GSO: true}, Wish{CRC: CRCOffered, IRD: 1, ORD: 1, GSO: true},
			"00 01 0000", "00 01 0000", 1, 1, 1, 1, false, false, 0},
		{"try_gso", Wish{CRC: CRCOffered, IRD: 1, ORD: 1, GSO: true}, Wish{CRC: CRCOffered, IRD: 1, ORD: 1, GSO: true},
			"18 02 0004 0001 0001", "18 02 0004 0001 0001", 1, 1, 1, 1, false, true, 0},
		{"iSER", Wish{CRC: CRCOffered, IRD: 128, ORD: 1, Private: iser}, Wish{CRC: CRCOffered, IRD: 1, ORD: 128, Private: iser},
			"10 02 0008 0080 0001 80000000", "10 02 0008 0001 0080 80000000", 128, 1, 1, 128, false, false, 0},
		{"iSER, peer-to-peer", Wish{CRC: CRCOffered, IRD: 128, ORD: 1, P2P: RTRWrite | RTRRead, Private: iser}, Wish{CRC: CRCOffered, IRD: 1, ORD: 128, Private: iser},
			"10 02 0008 8080 c001 80000000", "10 02 0008 8001 8080 80000000", 128, 1, 1, 128, false, false, RTRWrite},
		{"NVMe", Wish{CRC: CRCOffered, IRD: 128, ORD: 0}, Wish{CRC: CRCOffered, IRD: 0, ORD: 128},
			"10 02 0004 0080 0000", "10 02 0004 0000 0080", 128, 0, 0, 128, false, false, 0},
		{"CRC required by the responder only", Wish{CRC: CRCOffered, IRD: 1, ORD: 1}, Wish{IRD: 1, ORD: 1},
			"10 02 0004 0001 0001", "50 02 0004 0001 0001", 1, 1, 1, 1, true, false, 0},
		{"GSO offered, not granted", Wish{CRC: CRCOffered, IRD: 1, ORD: 1, GSO: true}, Wish{CRC: CRCOffered, IRD: 1, ORD: 1},
			"18 02 0004 0001 0001", "10 02 0004 0001 0001", 1, 1, 1, 1, false, false, 0},
		{"only Read as RTR", Wish{CRC: CRCOffered, IRD: 1, ORD: 1, P2P: RTRRead}, Wish{CRC: CRCOffered, IRD: 1, ORD: 1},
			"10 02 0004 8001 4001", "10 02 0004 8001 4001", 1, 1, 1, 1, false, false, RTRRead},
		{"Read as RTR raises the IRD", Wish{CRC: CRCOffered, IRD: 0, ORD: 0, P2P: RTRRead}, Wish{CRC: CRCOffered},
			"10 02 0004 8000 4000", "10 02 0004 8001 4000", 0, 0, 1, 0, false, false, RTRRead},
		{"only Send as RTR", Wish{CRC: CRCOffered, IRD: 1, ORD: 1, P2P: RTRSend}, Wish{CRC: CRCOffered, IRD: 1, ORD: 1},
			"10 02 0004 c001 0001", "10 02 0004 c001 0001", 1, 1, 1, 1, false, false, RTRSend},
		{"the responder insists on Read as RTR", Wish{CRC: CRCOffered, IRD: 1, ORD: 1, P2P: RTRWrite | RTRRead}, Wish{CRC: CRCOffered, IRD: 1, ORD: 1, P2P: RTRRead},
			"10 02 0004 8001 c001", "10 02 0004 8001 4001", 1, 1, 1, 1, false, false, RTRRead},
		{"no more IRD than is used", Wish{CRC: CRCOffered, IRD: 8, ORD: 4}, Wish{CRC: CRCOffered, IRD: 16, ORD: 2},
			"10 02 0004 0008 0004", "10 02 0004 0004 0002", 8, 4, 4, 2, false, false, 0},
		{"room for a Read as RTR in any case", Wish{CRC: CRCOffered, IRD: 8, ORD: 0}, Wish{CRC: CRCOffered, IRD: 16, ORD: 2},
			"10 02 0004 0008 0000", "10 02 0004 0001 0002", 8, 0, 1, 2, false, false, 0},
		{"only Send as RTR, deeper queues", Wish{CRC: CRCOffered, IRD: 4, ORD: 6, P2P: RTRSend}, Wish{CRC: CRCOffered, IRD: 6, ORD: 4},
			"10 02 0004 c004 0006", "10 02 0004 c006 0004", 4, 6, 6, 4, false, false, RTRSend},
		{"the responder would have Read as RTR, only Write is offered", Wish{CRC: CRCOffered, IRD: 1, ORD: 1, P2P: RTRWrite}, Wish{CRC: CRCOffered, IRD: 1, ORD: 1, P2P: RTRRead},
			"10 02 0004 8001 8001", "10 02 0004 8001 8001", 1, 1, 1, 1, false, false, RTRWrite},
		{"CRC off on both sides", Wish{CRC: CRCOff, IRD: 1, ORD: 1}, Wish{CRC: CRCOff, IRD: 1, ORD: 1},
			"10 02 0004 0001 0001", "10 02 0004 0001 0001", 1, 1, 1, 1, false, false, 0},
		{"queues deeper than 14 bits tell", Wish{CRC: CRCOffered, IRD: 1 << 20, ORD: 1 << 20}, Wish{CRC: CRCOffered, IRD: 1 << 20, ORD: 1 << 20},
			"10 02 0004 3ffe 3ffe", "10 02 0004 3ffe 3ffe", 1 << 20, 0x3ffe, 0x3ffe, 0x3ffe, false, false, 0},
		{"smaller queues win", Wish{CRC: CRCOffered, IRD: 8, ORD: 32}, Wish{CRC: CRCOffered, IRD: 16, ORD: 64},
			"10 02 0004 0008 0020", "10 02 0004 0010 0008", 8, 16, 16, 8, false, false, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			req, err := tt.init.Request()
			if err != nil {
				t.Fatal(err)
			}
			b := req.Append(nil)
			if want := unhex(t, reqHex+tt.req); !bytes.Equal(b, want) {
				t.Errorf("Request %x, want %x", b, want)
			}
			var got Frame
			if err := got.Parse(b, false); err != nil {
				t.Fatal(err)
			}
			if err := Check(&got); err != nil {
				t.Fatal(err)
			}
			rep, rr, err := tt.resp.Answer(&got)
			if err != nil {
				t.Fatal(err)
			}
			b = rep.Append(nil)
			if want := unhex(t, repHex+tt.rep); !bytes.Equal(b, want) {
				t.Errorf("Reply %x, want %x", b, want)
			}
			ir, err := tt.init.Agree(req, rep)
			if err != nil {
				t.Fatal(err)
			}
			if ir.IRD != tt.ird || ir.ORD != tt.ord || rr.IRD != tt.rird || rr.ORD != tt.rord {
				t.Errorf("initiator IRD %d ORD %d, responder IRD %d ORD %d", ir.IRD, ir.ORD, rr.IRD, rr.ORD)
			}
			if ir.CRC != tt.crc || rr.CRC != tt.crc || ir.GSO != tt.gso || rr.GSO != tt.gso || ir.RTR != tt.rtr || rr.RTR != tt.rtr {
				t.Errorf("initiator %+v, responder %+v", ir, rr)
			}
		})
	}
}

// S is a reserved bit of revision 1 (RFC 5044 §7.1.1), not looked at: there is no word.
func TestNoWordInRevision1(t *testing.T) {
	var f Frame
	if err := f.Parse(unhex(t, reqHex+"50 01 0004 80000001"), false); err != nil {
		t.Fatal(err)
	}
	if f.Enhanced || f.Flags != FlagCRC || !bytes.Equal(f.Private, []byte{0x80, 0, 0, 1}) {
		t.Errorf("%+v", f)
	}
	if err := f.Parse(unhex(t, reqHex+"50 01 0000"), false); err != nil {
		t.Error("without private data:", err)
	}
}

// Without A the flags B, C and D are not looked at (RFC 6581 §9).
func TestNoKindsWithoutA(t *testing.T) {
	for head, want := range map[string]RTR{
		"10 02 0004 c001 c001": RTRSend | RTRWrite | RTRRead,
		"10 02 0004 8001 8001": RTRWrite,
		"10 02 0004 8001 4001": RTRRead,
		"10 02 0004 c001 0001": RTRSend,
		"10 02 0004 4001 c001": 0,
	} {
		var f Frame
		if err := f.Parse(unhex(t, reqHex+head), false); err != nil {
			t.Fatal(err)
		}
		if f.P2P != (want != 0) || f.RTR != want || f.IRD != 1 || f.ORD != 1 {
			t.Errorf("%s: %+v", head, f)
		}
	}
}

// Without the flag S there is no word, whatever the revision, and the answer has none (RFC 6581 §6):
// each side goes by its own wishes.
func TestNoWord(t *testing.T) {
	w := Wish{IRD: 4, ORD: 5, Private: []byte("answer"), P2P: RTRRead, GSO: true}
	for head, want := range map[string]string{
		"00 00 0004 80000001": "40 00 0006 616e73776572",
		"40 01 0004 80000001": "40 01 0006 616e73776572",
		"40 02 0004 80000001": "40 02 0006 616e73776572",
	} {
		var f Frame
		if err := f.Parse(unhex(t, reqHex+head), false); err != nil {
			t.Fatal(err)
		}
		if err := Check(&f); err != nil {
			t.Error(head, err)
		}
		rep, res, err := w.Answer(&f)
		if err != nil {
			t.Fatal(err)
		}
		if got := rep.Append(nil); !bytes.Equal(got, unhex(t, repHex+want)) {
			t.Errorf("%s: %x, want %s", head, got[KeyLen:], want)
		}
		if !bytes.Equal(res.Private, []byte{0x80, 0, 0, 1}) || !res.CRC || res.IRD != 4 || res.ORD != 5 || res.RTR != 0 {
			t.Errorf("%s: %+v", head, res)
		}
		no, err := Reject(&f, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := no.Append(nil); got[KeyLen] != FlagReject || got[KeyLen+1] != f.Rev || len(got) != HdrLen {
			t.Errorf("%s: rejected by %x", head, got[KeyLen:])
		}
	}
}

// What each side must refuse.
func TestRefusals(t *testing.T) {
	cause := func(err error) wire.Cause {
		var r *Refusal
		if errors.As(err, &r) {
			return r.Cause
		}
		return 0xffff
	}
	w := Wish{CRC: CRCOffered, IRD: 1, ORD: 1}
	req, _ := w.Request()
	p2p, _ := (&Wish{IRD: 1, ORD: 1, P2P: RTRRead}).Request()
	v1, _ := (&Wish{Rev: 1}).Request()
	off := Wish{CRC: CRCOff, IRD: 1, ORD: 1}
	for _, tt := range []struct {
		name string
		err  func() error
		want wire.Cause
	}{
		{"markers in the Reply", func() error { _, err := w.Agree(req, &Frame{Rev: 2, Enhanced: true, Flags: FlagMarkers}); return err }, wire.CauseMPALocal},
		{"revision 3 in the Reply", func() error { _, err := w.Agree(req, &Frame{Rev: 3, Enhanced: true}); return err }, wire.CauseBadFrame},
		{"revision 3 to revision 1", func() error { _, err := w.Agree(v1, &Frame{Rev: 3}); return err }, wire.CauseBadFrame},
		{"revision 1 to revision 2", func() error { _, err := w.Agree(req, &Frame{Rev: 1}); return err }, wire.CauseBadFrame},
		{"not enhanced", func() error { _, err := w.Agree(req, &Frame{Rev: 2}); return err }, wire.CauseBadFrame},
		{"enhanced to revision 1", func() error { _, err := w.Agree(v1, &Frame{Rev: 1, Enhanced: true}); return err }, wire.CauseBadFrame},
		{"ORD above our IRD", func() error { _, err := w.Agree(req, &Frame{Rev: 2, Enhanced: true, IRD: 1, ORD: 2}); return err }, wire.CauseInsufficient},
		{"no peer-to-peer", func() error { _, err := w.Agree(p2p, &Frame{Rev: 2, Enhanced: true, IRD: 1, ORD: 1}); return err }, wire.CauseNoRTR},
		{"other RTR", func() error {
			_, err := w.Agree(p2p, &Frame{Rev: 2, Enhanced: true, IRD: 1, ORD: 1, P2P: true, RTR: RTRWrite})
			return err
		}, wire.CauseNoRTR},
		{"unasked peer-to-peer", func() error {
			_, err := w.Agree(req, &Frame{Rev: 2, Enhanced: true, IRD: 1, ORD: 1, P2P: true, RTR: RTRWrite})
			return err
		}, wire.CauseNoRTR},
		{"CRC in the Reply", func() error {
			_, err := off.Agree(req, &Frame{Rev: 2, Enhanced: true, IRD: 1, ORD: 1, Flags: FlagCRC})
			return err
		}, wire.CauseMPALocal},
		{"CRC in the Request", func() error { _, _, err := off.Answer(&Frame{Rev: 2, Enhanced: true, Flags: FlagCRC}); return err }, wire.CauseMPALocal},
		{"peer-to-peer without a kind", func() error { _, _, err := w.Answer(&Frame{Rev: 2, Enhanced: true, P2P: true}); return err }, wire.CauseNoRTR},
		{"markers in the Request", func() error { return Check(&Frame{Rev: 1, Flags: FlagMarkers}) }, wire.CauseMPALocal},
	} {
		if err := tt.err(); err == nil || cause(err) != tt.want {
			t.Errorf("%s: %v, want cause %v", tt.name, err, tt.want)
		}
	}
	if err := Check(&Frame{Rev: 3}); !errors.Is(err, ErrFrame) {
		t.Errorf("revision 3: %v", err)
	}
	// 512 bytes, of which the enhanced word takes 4 (RFC 5044 §7.1.1, RFC 6581 §6).
	for _, tt := range []struct {
		rev byte
		n   int
		ok  bool
	}{{2, 508, true}, {2, 509, false}, {1, 512, true}, {1, 513, false}} {
		w := Wish{Rev: int(tt.rev), Private: make([]byte, tt.n)}
		_, asked := w.Request()
		req := &Frame{Rev: tt.rev, Enhanced: tt.rev == 2}
		_, _, answered := w.Answer(req)
		_, rejected := Reject(req, w.Private)
		for _, err := range []error{asked, answered, rejected} {
			if (err == nil) != tt.ok {
				t.Errorf("%d bytes of private data in revision %d: %v", tt.n, tt.rev, err)
			}
		}
	}
}

// 0x3fff means that the depth is not negotiated here; it is mirrored.
func TestUnnegotiatedDepth(t *testing.T) {
	w := Wish{IRD: 4, ORD: 5}
	rep, res, err := w.Answer(&Frame{Rev: 2, Enhanced: true, IRD: MaxQueue, ORD: MaxQueue})
	if err != nil {
		t.Fatal(err)
	}
	if rep.IRD != MaxQueue || rep.ORD != MaxQueue || res.IRD != 4 || res.ORD != 5 {
		t.Errorf("Reply %+v, agreed %+v", rep, res)
	}
	req, _ := w.Request()
	if res, err = w.Agree(req, &Frame{Rev: 2, Enhanced: true, IRD: MaxQueue, ORD: MaxQueue}); err != nil || res.IRD != 4 || res.ORD != 5 {
		t.Errorf("agreed %+v, %v", res, err)
	}
}

func TestReject(t *testing.T) {
	f, err := Reject(&Frame{Rev: 2, Enhanced: true, Flags: FlagCRC | FlagMarkers}, []byte("no"))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := f.Append(nil), unhex(t, repHex+"30 02 0006 00000000 6e6f"); !bytes.Equal(got, want) {
		t.Errorf("%x, want %x", got, want)
	}
	f, _ = Reject(&Frame{Rev: 3, Enhanced: true}, nil) // of a revision that is not known here
	if got, want := f.Append(nil), unhex(t, repHex+"30 02 0004 00000000"); !bytes.Equal(got, want) {
		t.Errorf("%x, want %x", got, want)
	}
	f, _ = Reject(&Frame{Rev: 1}, nil)
	if got, want := f.Append(nil), unhex(t, repHex+"20 01 0000"); !bytes.Equal(got, want) {
		t.Errorf("%x, want %x", got, want)
	}
}

// A frame is read to the byte, however it is split, and what follows stays.
func TestReadFrame(t *testing.T) {
	f := Frame{Rev: 2, Enhanced: true, P2P: true, RTR: RTRWrite | RTRSend, IRD: 7, ORD: 9, Flags: FlagCRC, Private: []byte("private data")}
	b := append(f.Append(nil), "rest"...)
	r := iotest.OneByteReader(bytes.NewReader(b))
	var got Frame
	if err := ReadFrame(r, &got, false); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got.Append(nil), f.Append(nil)) {
		t.Errorf("%+v", got)
	}
	if rest, _ := io.ReadAll(r); string(rest) != "rest" {
		t.Errorf("%q is left", rest)
	}
	whole := f.Append(nil)
	for i := range whole {
		want := io.ErrUnexpectedEOF
		if i == 0 {
			want = io.EOF
		}
		if err := ReadFrame(bytes.NewReader(whole[:i]), &got, false); err != want {
			t.Errorf("cut at %d: %v", i, err)
		}
	}
	for name, in := range map[string]string{
		"other protocol":        hex.EncodeToString([]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n")),
		"no more than its head": hex.EncodeToString([]byte("GET / HTTP/1.1\r\n")),
		"a Reply":               repHex + "10 02 0004 0001 0001",
		"too long":              reqHex + "00 01 0201" + strings.Repeat("00", 513),
		"no word":               reqHex + "10 02 0003 000000",
	} {
		if err := ReadFrame(bytes.NewReader(unhex(t, in)), new(Frame), false); !errors.Is(err, ErrFrame) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := ReadFrame(bytes.NewReader(unhex(t, reqHex+"00 01 0200"+strings.Repeat("00", MaxPD))), &got, false); err != nil || len(got.Private) != MaxPD {
		t.Errorf("%d bytes of private data, as many as may be: %v", MaxPD, err)
	}
	late := io.MultiReader(bytes.NewReader(whole[:KeyLen]), iotest.ErrReader(os.ErrDeadlineExceeded))
	if err := ReadFrame(late, &got, false); err != os.ErrDeadlineExceeded {
		t.Errorf("a peer that falls silent behind the key: %v", err)
	}
	if err := ReadFrame(bytes.NewReader(unhex(t, reqHex+"10 02 0000")), &got, false); !errors.Is(err, ErrNoWord) || got.Rev != 2 {
		t.Errorf("enhanced without private data: %v", err)
	}
	if err := ReadFrame(bytes.NewReader(whole), new(Frame), true); !errors.Is(err, ErrFrame) {
		t.Errorf("a Request where a Reply is due: %v", err)
	}
}

// Parse takes a frame that fills its bytes, and nothing else.
func TestParseExactly(t *testing.T) {
	for name, in := range map[string]string{
		"one byte less than a header": reqHex + "00 01 00",
		"one byte of data less":       reqHex + "00 01 0002 01",
		"one byte of data more":       reqHex + "00 01 0002 010203",
		"a Reply":                     repHex + "00 01 0000",
		"another protocol":            strings.Repeat("20", HdrLen),
	} {
		if err := new(Frame).Parse(unhex(t, in), false); !errors.Is(err, ErrFrame) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzFrame(f *testing.F) {
	f.Add(unhex(f, reqHex+"50 02 0008 8080 c001 80000000"), false)
	f.Add(unhex(f, repHex+"30 02 0000"), true)
	f.Add(unhex(f, reqHex+"00 01 0000"), false)
	f.Fuzz(func(t *testing.T, b []byte, reply bool) {
		var g Frame
		if g.Parse(b, reply) != nil {
			return
		}
		// B, C and D are dropped when A is clear; all else survives.
		var again Frame
		if err := again.Parse(g.Append(nil), reply); err != nil {
			t.Fatal(err)
		}
		if again.IRD != g.IRD || again.ORD != g.ORD || again.RTR != g.RTR || again.Flags != g.Flags || !bytes.Equal(again.Private, g.Private) {
			t.Fatalf("%+v became %+v", g, again)
		}
		if !reply && Check(&g) == nil {
			for _, m := range []CRCMode{CRCRequired, CRCOffered, CRCOff} {
				w := Wish{CRC: m, IRD: 16, ORD: 16}
				if rep, r, err := w.Answer(&g); err == nil && (r.IRD > 16 || r.ORD > 16 || len(rep.Append(nil)) > HdrLen+MaxPD) {
					t.Fatalf("%+v was answered with %+v", g, r)
				}
			}
		}
	})
}
