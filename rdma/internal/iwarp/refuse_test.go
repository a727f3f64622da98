package iwarp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"reflect"
	"testing"

	"softiser/rdma/internal/mem"
	"softiser/rdma/internal/verbs"
	"softiser/rdma/internal/wire"
)

// TestRefusedSegments: a Terminate says what is wrong and shows the segment that it is about, as far as that
// has come and the error is the peer's: its length, its DDP header, and of a Read Request the RDMAP header
// where the error is RDMAP's (RFC 5040 §4.8). Nothing is placed.
func TestRefusedSegments(t *testing.T) {
	const none, length, ddp, rdmap = 0, 1, 2, 3 // what is shown: each with those before it
	tagged := func(op wire.Opcode, stag uint32, to uint64, last bool, n int) []byte {
		h := wire.Tagged{Ctrl: wire.Ctrl(op, last), STag: stag, TO: to}
		return append(h.Append(nil), make([]byte, n)...)
	}
	untagged := func(op wire.Opcode, qn, msn, mo uint32, last bool, n int) []byte {
		h := wire.Untagged{Ctrl: wire.Ctrl(op, last), QN: qn, MSN: msn, MO: mo}
		return append(h.Append(nil), make([]byte, n)...)
	}
	read := func(size, stag uint32) []byte {
		q := wire.ReadReq{SinkSTag: 5, SinkTO: 6, Size: size, SrcSTag: stag, SrcTO: 7}
		return append(untagged(wire.ReadRequest, wire.QNRead, 1, 0, true, 0), q.Append(nil)...)
	}
	with := func(b []byte, at int, clear, set byte) []byte { b[at] = b[at]&^clear | set; return b }
	for name, c := range map[string]struct {
		ulpdu func(stag uint32, base uint64) []byte // of a window of 64 bytes, which may be written
		cause wire.Cause
		shown int
	}{
		"nothing":                   {func(uint32, uint64) []byte { return nil }, wire.CauseMarker, none},
		"one byte":                  {func(uint32, uint64) []byte { return []byte{0x41} }, wire.CauseMarker, none},
		"half a tagged header":      {func(s uint32, to uint64) []byte { return tagged(wire.Write, s, to, true, 0)[:13] }, wire.CauseMarker, none},
		"half an untagged header":   {func(uint32, uint64) []byte { return untagged(wire.Send, 0, 1, 0, true, 0)[:17] }, wire.CauseMarker, none},
		"version of a tagged one":   {func(s uint32, to uint64) []byte { return with(tagged(wire.Write, s, to, true, 8), 0, 3, 2) }, wire.CauseTaggedVersion, ddp},
		"version of an untagged":    {func(uint32, uint64) []byte { return with(untagged(wire.Send, 0, 1, 0, true, 8), 0, 3, 2) }, wire.CauseVersion, ddp},
		"RDMAP version":             {func(uint32, uint64) []byte { return with(untagged(wire.Send, 0, 1, 0, true, 8), 1, 0xc0, 0x80) }, wire.CauseRDMAPVersion, ddp},
		"no such operation":         {func(uint32, uint64) []byte { return with(untagged(wire.Send, 0, 1, 0, true, 8), 1, 0xf, 0xf) }, wire.CauseOpcode, none},
		"untagged Write":            {func(s uint32, to uint64) []byte { return with(tagged(wire.Write, s, to, true, 8), 0, 0x80, 0) }, wire.CauseOpcode, length},
		"long Read Request":         {func(uint32, uint64) []byte { return append(read(8, 9), 0) }, wire.CauseOpUnspec, rdmap},
		"Read Request in parts":     {func(uint32, uint64) []byte { return with(read(8, 9), 0, 0x40, 0) }, wire.CauseOpUnspec, rdmap},
		"Read of what there isn't":  {func(uint32, uint64) []byte { return read(8, 0x777) }, wire.CauseRemoteSTag, rdmap},
		"Read of a window to write": {func(s uint32, _ uint64) []byte { return read(8, s) }, wire.CauseRemoteAccess, rdmap},
		"queue of a Read Request":   {func(uint32, uint64) []byte { return with(read(8, 9), 9, 0xff, 0) }, wire.CauseQN, ddp},
		"number of a Send":          {func(uint32, uint64) []byte { return untagged(wire.Send, 0, 2, 0, true, 8) }, wire.CauseMSNRange, ddp},
		"offset of a Send":          {func(uint32, uint64) []byte { return untagged(wire.Send, 0, 1, 4, true, 8) }, wire.CauseMO, ddp},
		"a Send that is too long":   {func(uint32, uint64) []byte { return untagged(wire.Send, 0, 1, 0, true, 6001) }, wire.CauseTooLong, ddp},
		"Write to nothing":          {func(_ uint32, to uint64) []byte { return tagged(wire.Write, 0x777, to, true, 8) }, wire.CauseSTag, ddp},
		"Write over the end":        {func(s uint32, to uint64) []byte { return tagged(wire.Write, s, to+57, true, 8) }, wire.CauseBounds, ddp},
		"Write before the start":    {func(s uint32, to uint64) []byte { return tagged(wire.Write, s, to-1, true, 8) }, wire.CauseBounds, ddp},
		"Response to no Read":       {func(s uint32, to uint64) []byte { return tagged(wire.ReadResponse, s, to, true, 8) }, wire.CauseDDPLocal, none},
	} {
		for _, crc := range rigModes {
			r := newRig(t, crc)
			p := bytes.Repeat([]byte{0xee}, 64)
			w, stag, base := r.window(p, mem.RemoteWrite)
			u := c.ulpdu(stag, base)
			r.feed(r.fpdu(u))
			want := &wire.Term{Cause: c.cause}
			if c.shown >= length {
				want.HasLen, want.SegLen = true, uint16(len(u))
			}
			n := wire.UntaggedLen
			if len(u) > 0 && u[0]&0x80 != 0 {
				n = wire.TaggedLen
			}
			if c.shown >= ddp {
				want.DDP = u[:n]
			}
			if c.shown >= rdmap {
				want.RDMAP = u[n : n+wire.ReadReqLen]
			}
			if !r.over || !reflect.DeepEqual(r.qp.term, want) {
				t.Errorf("%s, CRC %v: ended: %v, by %+v; want %+v", name, crc, r.over, r.qp.term, want)
			}
			var te *Terminated
			if !errors.As(r.qp.rx.err, &te) || te.Remote || te.Cause != c.cause || te.Detail == "" {
				t.Errorf("%s, CRC %v: %+v", name, crc, r.qp.rx.err)
			}
			if !bytes.Equal(p, bytes.Repeat([]byte{0xee}, 64)) {
				t.Errorf("%s, CRC %v: the window has changed", name, crc)
			}
			w.close()
		}
	}
}

// TestTerminateShowsNothingOfADamagedSegment: what a CRC does not vouch for may be anything.
func TestTerminateShowsNothingOfADamagedSegment(t *testing.T) {
	for _, split := range []bool{false, true} { // the CRC is checked at once, or as the segment comes
		r := newRig(t, true)
		b := r.send(make([]byte, 100), 0)
		b[len(b)-1] ^= 1
		if split {
			r.feed(b[:50])
			b = b[50:]
		}
		r.feed(b)
		if want := (&wire.Term{Cause: wire.CauseCRC}); !r.over || !reflect.DeepEqual(r.qp.term, want) {
			t.Errorf("in parts: %v; ended: %v, by %+v", split, r.over, r.qp.term)
		}
		if got := r.poll(); len(got) != 0 {
			t.Errorf("in parts: %v; %d messages have come", split, len(got))
		}
	}
}

// TestFirstReasonCounts: of two errors the peer is told the first, and of none after the end.
func TestFirstReasonCounts(t *testing.T) {
	r := newRig(t, false)
	first, second := &wire.Term{Cause: wire.CauseSTag}, &wire.Term{Cause: wire.CauseBounds}
	r.qp.Mu.Lock()
	defer r.qp.Mu.Unlock()
	r.qp.termLocked(first)
	r.qp.termLocked(second)
	if r.qp.term != first {
		t.Errorf("%+v", r.qp.term)
	}
	r.qp.term, r.qp.Err = nil, errors.New("over")
	r.qp.termLocked(second)
	if r.qp.term != nil {
		t.Errorf("after the end: %+v", r.qp.term)
	}
}

// TestRequestOfATerminate: the oldest request that has not been answered and can have caused the peer's Terminate
// ends by what that says; the others do not.
func TestRequestOfATerminate(t *testing.T) {
	ops := []verbs.Opcode{verbs.OpRead, verbs.OpSend, verbs.OpWrite, verbs.OpRead, verbs.OpFetchAdd, verbs.OpSendInv, verbs.OpWriteImm, verbs.OpCmpSwap, verbs.OpSend}
	const answered = 1 // the first so many
	for _, c := range []struct {
		cause wire.Cause
		op    int // that the Terminate shows; -1: none
		done  int // index of a request that has been answered as well
		index int // of the request; -1: none
		want  verbs.Status
	}{
		{wire.CauseSTag, int(wire.Write), -1, 2, verbs.StatusRemoteAccess},
		{wire.CauseBounds, int(wire.Write), 2, 6, verbs.StatusRemoteAccess},
		{wire.CauseRemoteSTag, int(wire.ReadRequest), -1, 3, verbs.StatusRemoteAccess},
		{wire.CauseRemoteAccess, int(wire.AtomicReq), -1, 4, verbs.StatusRemoteAccess},
		{wire.CauseStreamCatastroph, int(wire.AtomicReq), 4, 7, verbs.StatusRemoteOp},
		{wire.CauseNoBuffer, int(wire.Send), -1, 1, verbs.StatusRemoteInvalid},
		{wire.CauseTooLong, int(wire.SendSEInv), 1, 5, verbs.StatusRemoteInvalid},
		{wire.CauseMO, int(wire.SendInv), -1, 1, verbs.StatusRemoteOp},
		{wire.CauseOpcode, int(wire.SendSE), -1, 1, verbs.StatusRemoteOp},
		{wire.CauseCRC, -1, -1, 1, verbs.StatusFatal},
		{wire.CauseLocal, -1, -1, 1, verbs.StatusRemoteOp},
		{wire.CauseSTag, int(wire.ReadResponse), -1, -1, 0},
		{wire.CauseRDMAPVersion, int(wire.Immediate), -1, -1, 0},
	} {
		qp, _ := newPair(t, 1)
		qp.SQ.Size(16)
		for i, op := range ops {
			qp.SQ.Hide(op)
			qp.SQ.At(uint32(i)).Done = i < answered || i == c.done
		}
		term := &wire.Term{Cause: c.cause}
		if c.op >= 0 {
			term.DDP = binary.BigEndian.AppendUint16(nil, uint16(wire.Ctrl(wire.Opcode(c.op), true)))
		}
		qp.Mu.Lock()
		qp.remoteTermLocked(term)
		qp.Mu.Unlock()
		for i, op := range ops {
			want := verbs.StatusSuccess
			if i == c.index {
				want = c.want
			}
			if got := qp.SQ.At(uint32(i)).Status; got != want {
				t.Errorf("%v for operation %d: request %d, %v, ends with %q; want %q", c.cause, c.op, i, op, got, want)
			}
		}
	}
}
