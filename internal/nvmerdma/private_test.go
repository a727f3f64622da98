package nvmerdma

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"testing"

	"softiser/internal/nvme"
	"softiser/internal/pcaptest"
	"softiser/rdma"
)

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// The private data that Linux sends and answers.
func TestPrivateData(t *testing.T) {
	wire := append(unhex(t, "0000010080007f00"), make([]byte, 24)...)
	q := Request{QID: 1, HostRecv: 128, HostSend: 127}
	if got := q.AppendTo([]byte{9}); !bytes.Equal(got[1:], wire) {
		t.Errorf("% x", got)
	}
	if got, err := ParseRequest(wire); err != nil || got != q {
		t.Errorf("%+v, %v", got, err)
	}
	wire = append(unhex(t, "00002000"), make([]byte, 28)...)
	if got := acceptData(32); !bytes.Equal(got, wire) {
		t.Errorf("% x", got)
	}
	if n, err := parseAccept(wire); err != nil || n != 32 {
		t.Errorf("%d, %v", n, err)
	}
	for _, b := range [][]byte{nil, wire[:31], append([]byte{1}, wire[1:]...), make([]byte, 32)} {
		if _, err := parseAccept(b); err == nil {
			t.Errorf("% x is accepted", b)
		}
	}
	if got := (&RejectError{Status: RejectHostSend}).data(); !bytes.Equal(got, []byte{0, 0, 4, 0}) {
		t.Errorf("% x", got)
	}
}

// What is wrong with private data, as the host is told.
func TestRequestErrors(t *testing.T) {
	good := (&Request{HostRecv: 32, HostSend: 31}).AppendTo(nil)
	set := func(at int, v ...byte) []byte {
		b := bytes.Clone(good)
		copy(b[at:], v)
		return b
	}
	for _, c := range []struct {
		b    []byte
		want RejectStatus
	}{
		{nil, RejectLength}, {good[:31], RejectLength}, {set(0, 1), RejectFormat}, {set(0, 0, 1), RejectFormat},
		{set(6, 0, 0), RejectHostSend}, {set(4, 0, 0), RejectHostRecv}, {good, 0}, {append(bytes.Clone(good), 7), 0},
	} {
		_, err := ParseRequest(c.b)
		var no *RejectError
		if errors.As(err, &no) != (c.want != 0) || no != nil && no.Status != c.want {
			t.Errorf("% x: %v", c.b, err)
		}
	}
	for s := RejectLength; s <= RejectCntlID+1; s++ {
		e := &RejectError{Status: s}
		if err := rejected(fmt.Errorf("connect: %w", &rdma.RejectError{PrivateData: e.data()})); err.Error() != e.Error() {
			t.Errorf("status %d: %v", s, err)
		}
	}
	for _, b := range [][]byte{nil, {0, 0, 1}, {1, 0, 1, 0}} {
		if err := rejected(&rdma.RejectError{PrivateData: b}); !errors.Is(err, rdma.ErrRejected) {
			t.Errorf("% x: %v", b, err)
		}
	}
}

// Everything that Linux' host and target say to each other over siw follows the rules
// that this package follows: private data, lengths, whose memory is reached, and which
// key a response invalidates.
func TestCapture(t *testing.T) {
	commands, inCapsule, writes, reads, invalidated := 0, 0, 0, 0, 0
	for _, c := range pcaptest.Open(t, "nvme-rdma-siw") {
		if !bytes.HasPrefix(c.C2S, []byte("MPA ID Req Frame")) || !bytes.HasPrefix(c.S2C, []byte("MPA ID Rep Frame")) {
			continue
		}
		reqPriv, up := pcaptest.Messages(c.C2S)
		repPriv, down := pcaptest.Messages(c.S2C)
		q, err := ParseRequest(reqPriv[4:])
		if err != nil {
			t.Fatal(err)
		}
		if got := q.AppendTo(nil); !bytes.Equal(got, reqPriv[4:]) {
			t.Errorf("made again, the request is\n% x, it was\n% x", got, reqPriv[4:])
		}
		n, err := parseAccept(repPriv[4:])
		if err != nil || !bytes.Equal(acceptData(n), repPriv[4:]) {
			t.Errorf("accept % x: %v", repPriv[4:], err)
		}
		open := map[uint16]*nvme.SQE{} // the last command with an identifier
		keys := map[uint32]*command{}
		for _, m := range up {
			if m.Op != pcaptest.OpSend {
				continue
			}
			sqe, data, err := ParseCapsule(m.Payload)
			if err != nil {
				t.Fatal(err)
			}
			commands++
			d := sqe.SGL()
			switch k := d.Kind(); {
			case k == nvme.SGLInCapsule:
				inCapsule++
				if int(d.Length()) != len(data) || d.Address() != 0 || len(data) > InCapsule {
					t.Errorf("%d bytes in the capsule, the descriptor says %x", len(data), d)
				}
			case !(*Controller)(nil).NamesHostMemory(k) || len(data) > 0:
				t.Errorf("descriptor %x with %d bytes in the capsule", d, len(data))
			default:
				keys[d.Key()] = &command{Command: nvme.Command{SQE: *sqe}}
			}
			open[sqe.CID()] = sqe
		}
		for _, m := range down {
			switch m.Op {
			case pcaptest.OpWrite:
				k := keys[m.STag]
				if k == nil || m.TO < k.remote(0).TO || !k.within(uint32(m.TO-k.remote(0).TO), len(m.Payload)) {
					t.Errorf("a Write of %d bytes to %x:%x belongs to no command", len(m.Payload), m.STag, m.TO)
				}
				writes++
			case pcaptest.OpReadReq:
				reads++
			case pcaptest.OpSend, pcaptest.OpSendInv:
				if len(m.Payload) != nvme.CQELen {
					t.Fatalf("a response of %d bytes", len(m.Payload))
				}
				s := open[(*nvme.CQE)(m.Payload).CID()]
				if s == nil {
					t.Fatalf("response % x to no command", m.Payload)
				}
				if m.Op == pcaptest.OpSendInv {
					if k := keys[m.Inv]; k == nil || k.SQE.SGL().Kind() != nvme.SGLKeyedInvalidate {
						t.Errorf("the response invalidates %x", m.Inv)
					}
					invalidated++
				}
			}
		}
	}
	if commands < 50 || inCapsule == 0 || writes == 0 || reads == 0 || invalidated == 0 {
		t.Errorf("the capture has %d commands, %d with data, %d Writes, %d Reads, %d invalidations", commands, inCapsule, writes, reads, invalidated)
	}
}

func FuzzRequest(f *testing.F) {
	f.Add((&Request{QID: 1, HostRecv: 128, HostSend: 127}).AppendTo(nil))
	f.Add(acceptData(32))
	f.Add((&RejectError{Status: RejectIRD}).data())
	f.Fuzz(func(t *testing.T, b []byte) {
		if q, err := ParseRequest(b); err == nil {
			if again, err := ParseRequest(q.AppendTo(nil)); err != nil || again != q {
				t.Errorf("%+v became %+v, %v", q, again, err)
			}
		}
		if n, err := parseAccept(b); err == nil && n == 0 {
			t.Error("no room is accepted")
		}
		if err := rejected(&rdma.RejectError{PrivateData: b}); err == nil || err.Error() == "" {
			t.Errorf("%v", err)
		}
	})
}

func FuzzCapsule(f *testing.F) {
	var s nvme.SQE
	s.Init(nvme.OpWrite, 1)
	s.SGL().SetKeyed(nvme.SGLKeyedInvalidate, 1<<63, nvme.MaxKeyedLength, 0x3a62ad01)
	f.Add(s[:], uint32(0), 1<<20)
	s.SGL().SetBlock(nvme.SGLInCapsule, 0, 3)
	f.Add(append(s[:], 1, 2, 3), uint32(1), 2)
	f.Fuzz(func(t *testing.T, b []byte, off uint32, n int) {
		sqe, data, err := ParseCapsule(b)
		if err != nil {
			return
		}
		if len(data) != len(b)-nvme.SQELen {
			t.Errorf("%d bytes of data in %d", len(data), len(b))
		}
		k := command{Command: nvme.Command{SQE: *sqe}}
		if k.within(off, n) && (n <= 0 || uint64(off)+uint64(n) > uint64(sqe.SGL().Length())) {
			t.Errorf("%d bytes at %d are within %d", n, off, sqe.SGL().Length())
		}
	})
}
