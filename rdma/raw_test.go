package rdma_test

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"softiser/internal/await"
	"softiser/internal/loopback"
	"softiser/rdma"
	"softiser/rdma/internal/mpa"
	"softiser/rdma/internal/wire"
	"softiser/rdma/rdmatest"
)

// rawPeer speaks to a queue pair byte by byte, as a peer that breaks the rules
// can.
type rawPeer struct {
	t   testing.TB
	nc  *net.TCPConn
	crc bool
}

// rawToServer returns a queue pair that has accepted a connection from a raw
// initiator.
func rawToServer(t testing.TB, o *rdmatest.Options, f *mpa.Frame) (*rawPeer, *rdmatest.End) {
	t.Helper()
	if o == nil {
		o = &rdmatest.Options{}
	}
	e := rdmatest.NewEnd(t, o, 1)
	if o.Prepare != nil {
		o.Prepare(nil, e)
	}
	c, s := loopback.Pair(t)
	t.Cleanup(func() { c.Close() })
	if f == nil {
		f = &mpa.Frame{Rev: 2, Enhanced: true, IRD: 16, ORD: 16, Flags: mpa.FlagCRC}
	}
	if _, err := c.Write(f.Append(nil)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), rdmatest.Timeout)
	defer cancel()
	req, err := rdma.Server(ctx, s, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := req.Accept(ctx, e.QP, &o.Server); err != nil {
		t.Fatal(err)
	}
	p := &rawPeer{t: t, nc: c}
	_ = c.SetReadDeadline(time.Now().Add(rdmatest.Timeout))
	var rep mpa.Frame
	if err := mpa.ReadFrame(c, &rep, true); err != nil {
		t.Fatal(err)
	}
	p.crc = rep.Flags&mpa.FlagCRC != 0
	return p, e
}

// rawToClient returns a queue pair that has connected to a raw responder, and has heard it:
// a silent one is nudged, when a test is slow in the middle of what that is about.
func rawToClient(t testing.TB, o *rdmatest.Options) (*rawPeer, *rdmatest.End) {
	t.Helper()
	p, e := silentToClient(t, o)
	p.send(taggedMsg(wire.Write, 1, 0, true, nil))
	await.True(t, "it is heard", func() bool { return e.QP.Stats().WireIn > 0 })
	return p, e
}

// silentToClient is rawToClient with a responder that has not said anything yet.
func silentToClient(t testing.TB, o *rdmatest.Options) (*rawPeer, *rdmatest.End) {
	t.Helper()
	if o == nil {
		o = &rdmatest.Options{}
	}
	e := rdmatest.NewEnd(t, o, 0)
	if o.Prepare != nil {
		o.Prepare(e, nil)
	}
	c, s := loopback.Pair(t)
	t.Cleanup(func() { s.Close() })
	errc := make(chan error, 1)
	go func() {
		_, err := rdma.Client(context.Background(), c, e.QP, &o.Client)
		errc <- err
	}()
	_ = s.SetReadDeadline(time.Now().Add(rdmatest.Timeout))
	var req mpa.Frame
	if err := mpa.ReadFrame(s, &req, false); err != nil {
		t.Fatal(err)
	}
	rep := mpa.Frame{Reply: true, Rev: 2, Enhanced: true, IRD: 16, ORD: 16, Flags: req.Flags & mpa.FlagCRC}
	if _, err := s.Write(rep.Append(nil)); err != nil {
		t.Fatal(err)
	}
	if err := <-errc; err != nil {
		t.Fatal(err)
	}
	return &rawPeer{t: t, nc: s, crc: req.Flags&mpa.FlagCRC != 0}, e
}

func (p *rawPeer) fpdu(ulpdu []byte) []byte { return wire.AppendFPDU(nil, ulpdu, p.crc) }

func (p *rawPeer) send(ulpdus ...[]byte) {
	p.t.Helper()
	var b []byte
	for _, u := range ulpdus {
		b = append(b, p.fpdu(u)...)
	}
	p.write(b)
}

func (p *rawPeer) write(b []byte) {
	p.t.Helper()
	if _, err := p.nc.Write(b); err != nil {
		p.t.Fatal(err)
	}
}

// recv reads one FPDU and returns its ULPDU, nil at the end of the stream.
func (p *rawPeer) recv() []byte {
	p.t.Helper()
	_ = p.nc.SetReadDeadline(time.Now().Add(rdmatest.Timeout))
	var l [2]byte
	if _, err := io.ReadFull(p.nc, l[:]); err != nil {
		if errors.Is(err, io.EOF) {
			return nil
		}
		p.t.Fatal(err)
	}
	n := int(binary.BigEndian.Uint16(l[:]))
	b := make([]byte, wire.FPDULen(n))
	copy(b, l[:])
	if _, err := io.ReadFull(p.nc, b[2:]); err != nil {
		p.t.Fatal(err)
	}
	if p.crc && wire.CRC(0, b[:len(b)-4]) != wire.GetCRC(b[len(b)-4:]) {
		p.t.Fatalf("FPDU with a bad CRC: %x", b)
	}
	return b[2 : 2+n]
}

// recvUntilEnd is recv for a stream that may be cut off anywhere.
func (p *rawPeer) recvUntilEnd() []byte {
	_ = p.nc.SetReadDeadline(time.Now().Add(rdmatest.Timeout))
	var l [2]byte
	if _, err := io.ReadFull(p.nc, l[:]); err != nil {
		return nil
	}
	n := int(binary.BigEndian.Uint16(l[:]))
	b := make([]byte, wire.FPDULen(n)-2)
	if _, err := io.ReadFull(p.nc, b); err != nil {
		return nil
	}
	return b[:n]
}

// terminate skips what comes until a Terminate, and expects the end of the stream
// behind it.
func (p *rawPeer) terminate() *wire.Term {
	p.t.Helper()
	for {
		u := p.recv()
		if u == nil {
			p.t.Fatal("the stream ends without a Terminate")
		}
		if wire.Control(binary.BigEndian.Uint16(u)).Op() != wire.Terminate {
			continue
		}
		var h wire.Untagged
		h.Parse(u)
		if h.QN != wire.QNTerminate || h.MSN != 1 || h.MO != 0 || !h.Ctrl.Last() {
			p.t.Errorf("Terminate with header %+v", h)
		}
		term := &wire.Term{}
		if err := term.Parse(u[wire.UntaggedLen:]); err != nil {
			p.t.Fatal(err)
		}
		if u := p.recv(); u != nil {
			p.t.Errorf("%x follows the Terminate", u)
		}
		p.nc.Close()
		return term
	}
}

// Builders of ULPDUs.

func untagged(op wire.Opcode, qn, msn, mo uint32, last bool, rest ...[]byte) []byte {
	h := wire.Untagged{Ctrl: wire.Ctrl(op, last), QN: qn, MSN: msn, MO: mo}
	b := h.Append(nil)
	for _, r := range rest {
		b = append(b, r...)
	}
	return b
}

func sendMsg(msn uint32, payload []byte) []byte {
	return untagged(wire.Send, wire.QNSend, msn, 0, true, payload)
}

func sendInvMsg(msn, stag uint32) []byte {
	h := wire.Untagged{Ctrl: wire.Ctrl(wire.SendInv, true), MSN: msn, Inv: stag}
	return h.Append(nil)
}

func taggedMsg(op wire.Opcode, stag uint32, to uint64, last bool, payload []byte) []byte {
	h := wire.Tagged{Ctrl: wire.Ctrl(op, last), STag: stag, TO: to}
	return append(h.Append(nil), payload...)
}

func readMsg(msn uint32, r wire.ReadReq) []byte {
	return untagged(wire.ReadRequest, wire.QNRead, msn, 0, true, r.Append(nil))
}

func atomicMsg(msn uint32, a wire.Atomic) []byte {
	return untagged(wire.AtomicReq, wire.QNRead, msn, 0, true, a.Append(nil))
}

// plainRequest asks for a connection without CRC.
func plainRequest() *mpa.Frame { return &mpa.Frame{Rev: 2, Enhanced: true, IRD: 16, ORD: 16} }

// TestAbortive: of a connection that is aborted, the side that asks for it has nothing sent that waits
// in the socket. Others have it sent, and so does Disconnect.
func TestAbortive(t *testing.T) {
	enough := errors.New("enough")
	for _, tt := range []struct {
		name     string
		abortive bool
		end      func(*rdma.QP)
		want     error
	}{
		{"abort", true, func(qp *rdma.QP) { qp.Abort(enough) }, syscall.ECONNRESET},
		{"abort of one that is not", false, func(qp *rdma.QP) { qp.Abort(enough) }, nil},
		{"disconnect", true, func(qp *rdma.QP) { qp.Disconnect() }, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := &rdmatest.Options{Client: rdma.ConnParams{MPA: rdma.MPAParams{Abortive: tt.abortive}}}
			p, e := rawToClient(t, o)
			e.Post(t, rdma.SendWR{Op: rdma.OpSend, SGL: []rdma.SGE{e.SGE(make([]byte, 64<<20))}}) // more than sockets hold
			e.QP.Push()
			if _, err := io.ReadFull(p.nc, make([]byte, 1)); err != nil { // it has begun to flow
				t.Fatal(err)
			}
			tt.end(e.QP)
			if tt.want != nil {
				<-e.QP.Done()
			}
			if _, err := io.Copy(io.Discard, p.nc); !errors.Is(err, tt.want) {
				t.Errorf("the peer reads to the end: %v; want %v", err, tt.want)
			}
			p.nc.Close()
		})
	}
}
