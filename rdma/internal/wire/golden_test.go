package wire_test

import (
	"bytes"
	"encoding/binary"
	"testing"

	"softiser/internal/pcaptest"
	"softiser/rdma/internal/mpa"
	"softiser/rdma/internal/wire"
)

// Everything that Linux siw puts on the wire is parsed and encoded again: frames,
// headers, Terminates and trailers must come out as they were.
func TestCapturesRoundTrip(t *testing.T) {
	seen := map[wire.Opcode]int{}
	for _, name := range pcaptest.Names(t, "siw") {
		t.Run(name, func(t *testing.T) {
			for _, c := range pcaptest.Open(t, name) {
				if len(c.C2S) == 0 {
					continue
				}
				req, reqLen := frame(t, c.C2S, false)
				if len(c.S2C) == 0 {
					continue
				}
				rep, repLen := frame(t, c.S2C, true)
				crc := (req.Flags|rep.Flags)&mpa.FlagCRC != 0
				fpdus(t, c.C2S[reqLen:], crc, seen)
				fpdus(t, c.S2C[repLen:], crc, seen)
			}
		})
	}
	for _, op := range []wire.Opcode{wire.Write, wire.ReadRequest, wire.ReadResponse, wire.Send, wire.SendInv, wire.Terminate} {
		if seen[op] == 0 {
			t.Logf("no %v in the captures", op)
		}
	}
	if seen[wire.Send] < 100 || seen[wire.Write] < 100 || seen[wire.ReadResponse] < 20 {
		t.Errorf("too few messages: %v", seen)
	}
}

func frame(t *testing.T, b []byte, reply bool) (*mpa.Frame, int) {
	t.Helper()
	n := mpa.HdrLen + int(binary.BigEndian.Uint16(b[mpa.HdrLen-2:]))
	var f mpa.Frame
	if err := f.Parse(b[:n], reply); err != nil {
		t.Fatal(err)
	}
	if got := f.Append(nil); !bytes.Equal(got, b[:n]) {
		t.Fatalf("frame encoded as %x, was %x", got, b[:n])
	}
	return &f, n
}

func fpdus(t *testing.T, b []byte, crc bool, seen map[wire.Opcode]int) {
	t.Helper()
	for off := 0; off < len(b); {
		rest := b[off:]
		n := int(binary.BigEndian.Uint16(rest))
		whole := wire.FPDULen(n)
		if whole > len(rest) {
			t.Fatalf("FPDU at %d is cut off", off)
		}
		ulpdu := rest[2 : 2+n]
		op := wire.Control(binary.BigEndian.Uint16(ulpdu)).Op()
		seen[op]++
		out := binary.BigEndian.AppendUint16(nil, uint16(n))
		out = reencode(t, out, ulpdu)
		out = append(out, rest[len(out):len(out)+wire.Pad(n)]...) // siw does not clear its pad
		if crc {
			out = wire.AppendCRC(out, wire.CRC(0, out))
		} else {
			out = wire.AppendCRC(out, 0)
		}
		if !bytes.Equal(out, rest[:whole]) {
			t.Fatalf("FPDU at %d encoded as\n%x, was\n%x", off, out, rest[:whole])
		}
		off += whole
	}
}

func reencode(t *testing.T, b, u []byte) []byte {
	t.Helper()
	ctrl := wire.Control(binary.BigEndian.Uint16(u))
	info := wire.Ops[ctrl.Op()]
	if ctrl.DV() != 1 || ctrl.RV() != 1 || info.Name == "" || info.Tagged != ctrl.Tagged() {
		t.Fatalf("control word %04x", uint16(ctrl))
	}
	if want := wire.Ctrl(ctrl.Op(), ctrl.Last()); want != ctrl {
		t.Fatalf("control word %04x, ours would be %04x", uint16(ctrl), uint16(want))
	}
	if ctrl.Tagged() {
		var h wire.Tagged
		h.Parse(u)
		return append(h.Append(b), u[wire.TaggedLen:]...)
	}
	var h wire.Untagged
	h.Parse(u)
	if h.QN != info.QN {
		t.Fatalf("%v on queue %d", ctrl.Op(), h.QN)
	}
	b = h.Append(b)
	u = u[wire.UntaggedLen:]
	switch ctrl.Op() {
	case wire.ReadRequest:
		var r wire.ReadReq
		r.Parse(u)
		return r.Append(b)
	case wire.Terminate:
		var term wire.Term
		if err := term.Parse(u); err != nil {
			t.Fatal(err)
		}
		return term.Append(b)
	}
	return append(b, u...)
}
