package rdma_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"softiser/internal/await"
	"softiser/rdma"
	"softiser/rdma/internal/wire"
	"softiser/rdma/rdmatest"
)

// The peer's Terminate is why a connection has ended, also where its reset is met first, by who sends.
func TestTerminateBeforeAReset(t *testing.T) {
	h := wire.Untagged{Ctrl: wire.Ctrl(wire.Terminate, true), QN: wire.QNTerminate, MSN: 1}
	term := wire.Term{Cause: wire.CauseNoBuffer}
	last := term.Append(h.Append(nil))
	for name, c := range map[string]struct {
		unread func(p *rawPeer) []byte // what is in the socket when the transmitter meets the reset
		told   bool
	}{
		"alone":               {func(p *rawPeer) []byte { return p.fpdu(last) }, true},
		"behind another FPDU": {func(p *rawPeer) []byte { return append(p.fpdu(sendMsg(2, make([]byte, 1000))), p.fpdu(last)...) }, true},
		"far behind":          {func(p *rawPeer) []byte { return append(p.fpdu(sendMsg(2, make([]byte, 40_000))), p.fpdu(last)...) }, true},
		"cut off":             {func(p *rawPeer) []byte { return p.fpdu(last)[:20] }, false},
		"damaged":             {func(p *rawPeer) []byte { b := p.fpdu(last); b[10] ^= 1; return b }, false},
		"none":                {func(p *rawPeer) []byte { return p.fpdu(sendMsg(2, nil)) }, false},
		"noise":               {func(*rawPeer) []byte { return bytes.Repeat([]byte{0xff}, 1000) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			entered, leave := make(chan struct{}), make(chan struct{})
			var once sync.Once
			p, e := rawToClient(t, &rdmatest.Options{Handlers: [2]func(*rdma.CQ){func(cq *rdma.CQ) {
				once.Do(func() { close(entered); <-leave }) // holds the receiver up
				for wcs := make([]rdma.WC, 16); cq.Poll(wcs) > 0; {
				}
			}}})
			e.Recv(t, 1, make([]byte, 8))
			p.send(sendMsg(1, []byte("x")))
			<-entered
			p.write(c.unread(p))
			if err := errors.Join(p.nc.SetLinger(0), p.nc.Close()); err != nil {
				t.Fatal(err)
			}
			await.True(t, "the reset is met", func() bool {
				_ = e.QP.PostSend(rdma.SendWR{Op: rdma.OpSend})
				select {
				case <-e.QP.Failing():
					return true
				default:
					return false
				}
			})
			close(leave)
			err := e.WaitDone(t)
			var te *rdma.TerminateError
			if told := errors.As(err, &te) && te.Remote && wire.MakeCause(wire.Layer(te.Layer), te.EType, te.Code) == wire.CauseNoBuffer; told != c.told {
				t.Errorf("%v", err)
			}
			if n := e.QP.Stats().TerminatesIn; (n == 1) != c.told {
				t.Errorf("%d Terminates counted", n)
			}
		})
	}
}

// memory is what the peer of an error test may aim at.
type memory struct {
	rw, ro, wo, dead, foreign *rdma.MR
	win                       *rdma.Window
	stag                      uint32 // of win, bound to the queue pair
	base                      uint64
	mem                       []byte
}

func newMemory(t *testing.T, e *rdmatest.End) *memory {
	t.Helper()
	m := &memory{mem: aligned(8192)}
	reg := func(pd *rdma.PD, a rdma.Access) *rdma.MR {
		mr, err := pd.RegMR(m.mem, a|rdma.AccessLocalWrite)
		if err != nil {
			t.Fatal(err)
		}
		return mr
	}
	all := rdma.AccessRemoteRead | rdma.AccessRemoteWrite | rdma.AccessRemoteAtomic
	m.rw, m.ro, m.wo, m.dead = reg(e.PD, all), reg(e.PD, rdma.AccessRemoteRead), reg(e.PD, rdma.AccessRemoteWrite), reg(e.PD, all)
	m.dead.Invalidate()
	pd, err := e.Dev.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	m.foreign = reg(pd, all)
	if m.win, err = e.PD.AllocWindow(); err != nil {
		t.Fatal(err)
	}
	// Bound to another queue pair of the same domain.
	qp, err := e.PD.CreateQP(rdma.QPConfig{SendCQ: e.CQ, RecvCQ: e.CQ})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		qp.Close()
		for _, mr := range []*rdma.MR{m.rw, m.ro, m.wo, m.dead, m.foreign} {
			mr.Dereg()
		}
		m.win.Close()
		if err := pd.Dealloc(); err != nil {
			t.Error(err)
		}
	})
	if m.stag, m.base, err = m.win.Bind(qp, [][]byte{m.mem}, all); err != nil {
		t.Fatal(err)
	}
	return m
}

// target is memory that a peer may not get at.
type target struct {
	name string
	stag func(*memory) uint32
	to   func(*memory) uint64
	n    uint32
	// expected causes of iWARP: RDMA Write, RDMA Read Request, Atomic
	write, read, atomic wire.Cause
}

// none: the operation is allowed, or cannot be asked for.
const none = wire.Cause(0xffff)

func rw(m *memory) uint32   { return m.rw.RKey() }
func base(m *memory) uint64 { return m.rw.Addr() }

var targets = []target{
	{"unknown STag", func(*memory) uint32 { return 0x00fedc00 }, base, 64, wire.CauseSTag, wire.CauseRemoteSTag, wire.CauseRemoteSTag},
	{"STag 0", func(*memory) uint32 { return 0 }, base, 64, wire.CauseSTag, wire.CauseRemoteSTag, wire.CauseRemoteSTag},
	{"local DMA key", func(*memory) uint32 { return 0xff }, base, 64, wire.CauseSTag, wire.CauseRemoteSTag, wire.CauseRemoteSTag},
	{"wrong key", func(m *memory) uint32 { return m.rw.RKey() ^ 1 }, base, 64, wire.CauseSTag, wire.CauseRemoteSTag, wire.CauseRemoteSTag},
	{"invalidated", func(m *memory) uint32 { return m.dead.RKey() }, base, 64, wire.CauseSTag, wire.CauseRemoteSTag, wire.CauseRemoteSTag},
	{"other protection domain", func(m *memory) uint32 { return m.foreign.RKey() }, base, 64, wire.CauseStream, wire.CauseRemoteStream, wire.CauseRemoteStream},
	{"window of another queue pair", func(m *memory) uint32 { return m.stag }, base, 64, wire.CauseStream, wire.CauseRemoteStream, wire.CauseRemoteStream},
	{"before the base", rw, func(m *memory) uint64 { return m.rw.Addr() - 8 }, 64, wire.CauseBounds, wire.CauseRemoteBounds, wire.CauseRemoteBounds},
	{"one byte beyond the end", rw, func(m *memory) uint64 { return m.rw.Addr() + 8192 - 56 }, 57, wire.CauseBounds, wire.CauseRemoteBounds, none},
	{"behind the end", rw, func(m *memory) uint64 { return m.rw.Addr() + 8192 }, 8, wire.CauseBounds, wire.CauseRemoteBounds, wire.CauseRemoteBounds},
	{"far away", rw, func(m *memory) uint64 { return 1 << 62 }, 64, wire.CauseBounds, wire.CauseRemoteBounds, wire.CauseRemoteBounds},
	{"offset wraps", rw, func(m *memory) uint64 { return ^uint64(7) }, 64, wire.CauseWrap, wire.CauseRemoteWrap, none},
	{"read only", func(m *memory) uint32 { return m.ro.RKey() }, base, 64, wire.CauseSTag, none, wire.CauseRemoteAccess},
	{"write only", func(m *memory) uint32 { return m.wo.RKey() }, base, 64, none, wire.CauseRemoteAccess, wire.CauseRemoteAccess},
}

// Every check of memory, for every operation that names memory of ours: the peer
// gets the Terminate of the right layer, type and code, and nothing is touched.
func TestRemoteMemoryChecks(t *testing.T) {
	for _, tt := range targets {
		for op, want := range map[wire.Opcode]wire.Cause{wire.Write: tt.write, wire.ReadRequest: tt.read, wire.AtomicReq: tt.atomic} {
			if want == none {
				continue
			}
			t.Run(fmt.Sprintf("%s/%v", tt.name, op), func(t *testing.T) {
				p, e := rawToServer(t, &rdmatest.Options{Server: rdma.ConnParams{Extensions: true}}, nil)
				m := newMemory(t, e)
				stag, to := tt.stag(m), tt.to(m)
				before := bytes.Clone(m.mem)
				announce := taggedMsg(wire.Write, 0x7306, 0x736f667469736572, true, nil)
				var msg []byte
				ddp := wire.UntaggedLen
				switch op {
				case wire.Write:
					msg = taggedMsg(wire.Write, stag, to, true, bytes.Repeat([]byte{0xee}, int(tt.n)))
					ddp = wire.TaggedLen
				case wire.ReadRequest:
					msg = readMsg(1, wire.ReadReq{SinkSTag: 5, SinkTO: 6, Size: tt.n, SrcSTag: stag, SrcTO: to})
				case wire.AtomicReq:
					msg = atomicMsg(1, wire.Atomic{Op: wire.FetchAdd, STag: stag, TO: to &^ 7, Data: 1})
				}
				e.Recv(t, 1, make([]byte, 8))
				p.send(announce, msg)
				term := p.terminate()
				if term.Cause != want || term.SIW {
					t.Errorf("Terminate says %v, want %v", term.Cause, want)
				}
				// M and D with the refused header; R with a Read Request for RDMAP errors.
				if !term.HasLen || int(term.SegLen) != len(msg) || !bytes.Equal(term.DDP, msg[:ddp]) {
					t.Errorf("Terminate carries length %d and header %x of %x", term.SegLen, term.DDP, msg)
				}
				if op == wire.ReadRequest && !bytes.Equal(term.RDMAP, msg[ddp:]) {
					t.Errorf("Terminate carries the RDMAP header %x of %x", term.RDMAP, msg)
				}
				var te *rdma.TerminateError
				if err := e.WaitDone(t); !errors.As(err, &te) || te.Remote || wire.MakeCause(wire.Layer(te.Layer), te.EType, te.Code) != want {
					t.Errorf("the connection ended by: %v", err)
				}
				e.Want(t, 1, rdma.WCRecv, rdma.StatusFlushed)
				if !bytes.Equal(before, m.mem) {
					t.Error("memory was changed")
				}
			})
		}
	}
}

// Everything else that a peer can do wrong.
func TestProtocolErrors(t *testing.T) {
	ctl := func(c uint16, n int) []byte {
		b := make([]byte, n)
		binary.BigEndian.PutUint16(b, c)
		return b
	}
	sized := func(n int) []byte { return make([]byte, n) }
	tests := []struct {
		name string
		msgs [][]byte
		want wire.Cause
		wcs  []rdma.WCStatus // of the two receive buffers of 16 bytes
	}{
		{"DDP version, untagged", [][]byte{ctl(0x4243, 40)}, wire.CauseVersion, nil},
		{"DDP version, tagged", [][]byte{ctl(0xc040, 40)}, wire.CauseTaggedVersion, nil},
		{"RDMAP version", [][]byte{ctl(0x4103, 40)}, wire.CauseRDMAPVersion, nil},
		{"opcode 15", [][]byte{ctl(0x414f, 40)}, wire.CauseOpcode, nil},
		{"atomics not agreed on", [][]byte{atomicMsg(1, wire.Atomic{})}, wire.CauseOpcode, nil},
		{"immediate data not agreed on", [][]byte{untagged(wire.Immediate, 0, 1, 0, true, sized(8))}, wire.CauseOpcode, nil},
		{"tagged Send", [][]byte{ctl(0xc143, 40)}, wire.CauseOpcode, nil},
		{"untagged Write", [][]byte{ctl(0x4140, 40)}, wire.CauseOpcode, nil},
		{"ULPDU of no bytes", [][]byte{{}}, wire.CauseMarker, nil},
		{"ULPDU of one byte", [][]byte{{0x41}}, wire.CauseMarker, nil},
		{"short tagged header", [][]byte{ctl(0xc140, 13)}, wire.CauseMarker, nil},
		{"short untagged header", [][]byte{ctl(0x4143, 17)}, wire.CauseMarker, nil},
		{"short Read Request", [][]byte{readMsg(1, wire.ReadReq{})[:45]}, wire.CauseMarker, nil},
		{"long Read Request", [][]byte{append(readMsg(1, wire.ReadReq{}), 0)}, wire.CauseOpUnspec, nil},
		{"Read Request in two segments", [][]byte{untagged(wire.ReadRequest, 1, 1, 0, false, sized(28))}, wire.CauseOpUnspec, nil},
		{"Send on queue 1", [][]byte{untagged(wire.Send, 1, 1, 0, true)}, wire.CauseQN, nil},
		{"Send on queue 7", [][]byte{untagged(wire.Send, 7, 1, 0, true)}, wire.CauseQN, nil},
		{"Read Request on queue 0", [][]byte{untagged(wire.ReadRequest, 0, 1, 0, true, sized(28))}, wire.CauseQN, nil},
		{"Send with MSN 0", [][]byte{sendMsg(0, nil)}, wire.CauseMSNRange, nil},
		{"Send with MSN 2", [][]byte{sendMsg(2, nil)}, wire.CauseMSNRange, nil},
		{"MSN twice", [][]byte{sendMsg(1, nil), sendMsg(1, nil)}, wire.CauseMSNRange, []rdma.WCStatus{rdma.StatusSuccess, rdma.StatusFlushed}},
		{"Read Request with MSN 2", [][]byte{readMsg(2, wire.ReadReq{})}, wire.CauseMSNRange, nil},
		{"Send that begins at 4", [][]byte{untagged(wire.Send, 0, 1, 4, true)}, wire.CauseMO, nil},
		{"gap in a Send", [][]byte{untagged(wire.Send, 0, 1, 0, false, sized(4)), untagged(wire.Send, 0, 1, 8, true)}, wire.CauseMO, nil},
		{"first segment twice", [][]byte{untagged(wire.Send, 0, 1, 0, false, sized(4)), untagged(wire.Send, 0, 1, 0, false, sized(4))}, wire.CauseMO, nil},
		{"next message inside a Send", [][]byte{untagged(wire.Send, 0, 1, 0, false, sized(4)), sendMsg(2, nil)}, wire.CauseMSNRange, nil},
		{"Read Request at offset 4", [][]byte{untagged(wire.ReadRequest, 1, 1, 4, true, sized(28))}, wire.CauseMO, nil},
		{"Terminate at offset 4", [][]byte{untagged(wire.Terminate, wire.QNTerminate, 1, 4, true, sized(4))}, wire.CauseMO, nil},
		{"Send too long", [][]byte{sendMsg(1, sized(17))}, wire.CauseTooLong, []rdma.WCStatus{rdma.StatusLocalLength, rdma.StatusFlushed}},
		{"Send too long, second segment", [][]byte{untagged(wire.Send, 0, 1, 0, false, sized(16)), untagged(wire.Send, 0, 1, 16, true, sized(1))}, wire.CauseTooLong, []rdma.WCStatus{rdma.StatusLocalLength, rdma.StatusFlushed}},
		{"no receive buffer", [][]byte{sendMsg(1, nil), sendMsg(2, nil), sendMsg(3, nil)}, wire.CauseNoBuffer, []rdma.WCStatus{rdma.StatusSuccess, rdma.StatusSuccess}},
		{"invalidate an unknown STag", [][]byte{sendInvMsg(1, 0x123456)}, wire.CauseRemoteNoInval, nil},
		{"Read Response not asked for", [][]byte{taggedMsg(wire.ReadResponse, 1, 0, true, sized(8))}, wire.CauseDDPLocal, nil},
		{"more Reads than IRD", func() (out [][]byte) {
			// The first one may be on its way out when the others arrive.
			for i := range 64 {
				out = append(out, readMsg(uint32(i+1), wire.ReadReq{SinkSTag: 1}))
			}
			return out
		}(), wire.CauseStreamCatastroph, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p, e := rawToServer(t, &rdmatest.Options{Server: rdma.ConnParams{IRD: 4}}, nil)
			e.Recv(t, 1, make([]byte, 16))
			e.Recv(t, 2, make([]byte, 16))
			p.send(tt.msgs...)
			term := p.terminate()
			if term.Cause != tt.want {
				t.Errorf("Terminate says %v, want %v", term.Cause, tt.want)
			}
			if term.RDMAP != nil && tt.want.Layer() != wire.LayerRDMAP {
				t.Errorf("the RDMAP header %x is included, though %v is not about it", term.RDMAP, tt.want)
			}
			if err := e.WaitDone(t); err == nil {
				t.Error("the queue pair does not say why it ended")
			}
			if e.QP.State() != rdma.StateError {
				t.Errorf("state %v", e.QP.State())
			}
			want := tt.wcs
			if want == nil {
				want = []rdma.WCStatus{rdma.StatusFlushed, rdma.StatusFlushed}
			}
			for i, st := range want {
				e.Want(t, uint64(i+1), rdma.WCRecv, st)
			}
			if s := e.QP.Stats(); s.TerminatesOut != 1 || s.TerminatesIn != 0 {
				t.Errorf("counters: %d Terminates sent, %d received", s.TerminatesOut, s.TerminatesIn)
			}
			want1 := []rdma.EndCount{{
				Layer: tt.want.Layer().String(), Reason: tt.want.Name(), Count: 1,
				Code: fmt.Sprintf("%d/%d/%02x", uint8(tt.want.Layer()), tt.want.EType(), tt.want.Code()),
			}}
			await.True(t, "the end is counted by its code", func() bool { return slices.Equal(e.Dev.Stats().Ends, want1) })
		})
	}
}

// What a peer gives as its reason and no RFC knows is one count, however many of them it
// thinks of.
func TestUnknownReasonsAreOne(t *testing.T) {
	p, e := rawToServer(t, nil, nil)
	p.send(untagged(wire.Terminate, wire.QNTerminate, 1, 0, true, []byte{0x2F, 0xEE, 0, 0}))
	if err := e.WaitDone(t); err == nil {
		t.Error("the queue pair does not say why it ended")
	}
	want := []rdma.EndCount{{Remote: true, Layer: "unknown", Reason: "unknown", Count: 1}}
	await.True(t, "the end is counted", func() bool { return slices.Equal(e.Dev.Stats().Ends, want) })
}

// A Read Response that is not the one asked for.
func TestReadResponseChecks(t *testing.T) {
	for _, tt := range []struct {
		name   string
		stag   uint32 // added
		to     uint64 // added
		n      int
		last   bool
		want   wire.Cause
		status rdma.WCStatus
	}{
		{"wrong STag", 1, 0, 100, true, wire.CauseSTag, rdma.StatusFlushed},
		{"wrong offset", 0, 4, 100, true, wire.CauseBounds, rdma.StatusFlushed},
		{"too long", 0, 0, 101, true, wire.CauseBounds, rdma.StatusFlushed},
		{"too short", 0, 0, 99, true, wire.CauseBounds, rdma.StatusFlushed},
		{"too long in its first segment", 0, 0, 101, false, wire.CauseBounds, rdma.StatusFlushed},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p, e := rawToClient(t, nil)
			sink := make([]byte, 100)
			e.Post(t, rdma.SendWR{ID: 7, Op: rdma.OpRead, SGL: []rdma.SGE{e.SGE(sink)}, Remote: rdma.RemoteAddr{STag: 99}})
			u := p.recv()
			var r wire.ReadReq
			r.Parse(u[wire.UntaggedLen:])
			if r.Size != 100 || r.SrcSTag != 99 {
				t.Fatalf("Read Request %+v", r)
			}
			p.send(taggedMsg(wire.ReadResponse, r.SinkSTag+tt.stag, r.SinkTO+tt.to, tt.last, bytes.Repeat([]byte{1}, tt.n)))
			if term := p.terminate(); term.Cause != tt.want {
				t.Errorf("Terminate says %v, want %v", term.Cause, tt.want)
			}
			e.Want(t, 7, rdma.WCRead, tt.status)
			if !bytes.Equal(sink, make([]byte, 100)) {
				t.Error("the sink was touched")
			}
		})
	}
}

// The sink of a Read is not open to RDMA Writes.
func TestReadSinkTakesNoWrites(t *testing.T) {
	p, e := rawToClient(t, nil)
	e.Post(t, rdma.SendWR{ID: 7, Op: rdma.OpRead, SGL: []rdma.SGE{e.SGE(make([]byte, 100))}})
	var r wire.ReadReq
	r.Parse(p.recv()[wire.UntaggedLen:])
	p.send(taggedMsg(wire.Write, r.SinkSTag, r.SinkTO, true, make([]byte, 4)))
	if term := p.terminate(); term.Cause != wire.CauseSTag {
		t.Errorf("Terminate says %v", term.Cause)
	}
	e.Want(t, 7, rdma.WCRead, rdma.StatusFlushed)
}

// A Terminate from the peer, in both layouts: the request it is about fails with
// a status that says so, the others are flushed, and we answer with FIN only.
func TestTerminateReceived(t *testing.T) {
	hdr := func(op wire.Opcode) []byte {
		if wire.Ops[op].Tagged {
			return taggedMsg(op, 1, 2, true, nil)
		}
		return untagged(op, wire.Ops[op].QN, 1, 0, true)
	}
	for _, siw := range []bool{false, true} {
		for _, tt := range []struct {
			cause wire.Cause
			op    wire.Opcode
			id    uint64
			st    rdma.WCStatus
		}{
			{wire.CauseSTag, wire.Write, 3, rdma.StatusRemoteAccess},
			{wire.CauseBounds, wire.Write, 3, rdma.StatusRemoteAccess},
			{wire.CauseRemoteSTag, wire.ReadRequest, 1, rdma.StatusRemoteAccess},
			{wire.CauseStreamCatastroph, wire.ReadRequest, 1, rdma.StatusRemoteOp},
			{wire.CauseNoBuffer, wire.Send, 2, rdma.StatusRemoteInvalid},
			{wire.CauseTooLong, wire.Send, 2, rdma.StatusRemoteInvalid},
		} {
			t.Run(fmt.Sprintf("%v/siw=%v", tt.cause, siw), func(t *testing.T) {
				p, e := rawToClient(t, nil)
				// The Read is never answered, so that the others stay incomplete behind it.
				e.Post(t, rdma.SendWR{ID: 1, Op: rdma.OpRead, SGL: []rdma.SGE{e.SGE(make([]byte, 8))}})
				e.Post(t, rdma.SendWR{ID: 2, Op: rdma.OpSend})
				e.Post(t, rdma.SendWR{ID: 3, Op: rdma.OpWrite, SGL: []rdma.SGE{e.SGE(make([]byte, 8))}})
				for range 3 {
					p.recv()
				}
				term := wire.Term{Cause: tt.cause, HasLen: true, SegLen: 20, DDP: hdr(tt.op), SIW: siw}
				p.send(untagged(wire.Terminate, wire.QNTerminate, 1, 0, true, term.Append(nil)))
				if u := p.recv(); u != nil {
					t.Errorf("the Terminate was answered with %x", u)
				}
				p.nc.Close()
				var te *rdma.TerminateError
				if err := e.WaitDone(t); !errors.As(err, &te) || !te.Remote || te.Code != tt.cause.Code() || te.Layer != uint8(tt.cause.Layer()) {
					t.Errorf("the connection ended by: %v", err)
				}
				for _, wc := range e.Poll(t, 3) {
					want := rdma.StatusFlushed
					if wc.ID == tt.id {
						want = tt.st
					}
					if wc.Status != want {
						t.Errorf("request %d: %v, want %v", wc.ID, wc.Status, want)
					}
				}
			})
		}
	}
}

// Keys of local memory: each wrong one fails the request that names it and ends
// the connection with the RDMAP code for a local error.
func TestLocalProtection(t *testing.T) {
	for _, op := range []rdma.Opcode{rdma.OpSend, rdma.OpWrite, rdma.OpRead} {
		for _, what := range []string{"unknown key", "outside", "dead", "not writable"} {
			if what == "not writable" && op != rdma.OpRead {
				continue
			}
			t.Run(fmt.Sprintf("%v/%s", op, what), func(t *testing.T) {
				p, e := rawToClient(t, nil)
				mem := make([]byte, 200)
				access := rdma.AccessLocalWrite
				if what == "not writable" {
					access = 0
				}
				mr, err := e.PD.RegMR(mem[:100], access)
				if err != nil {
					t.Fatal(err)
				}
				sge := rdma.SGE{Mem: mem[:100], LKey: mr.LKey()}
				switch what {
				case "unknown key":
					sge.LKey = 0x00765400
				case "outside":
					sge.Mem = mem[50:101]
				case "dead":
					if err := mr.Dereg(); err != nil {
						t.Fatal(err)
					}
				}
				if err := e.QP.PostSend(
					rdma.SendWR{ID: 1, Op: rdma.OpSend, Flags: rdma.FlagSignaled},
					rdma.SendWR{ID: 2, Op: op, SGL: []rdma.SGE{sge}},
					rdma.SendWR{ID: 3, Op: rdma.OpSend}); err != nil {
					t.Fatal(err)
				}
				if term := p.terminate(); term.Cause != wire.CauseLocal {
					t.Errorf("Terminate says %v", term.Cause)
				}
				// What was queued before has been sent.
				e.Want(t, 1, rdma.WCSend, rdma.StatusSuccess)
				if wc := e.Poll(t, 1)[0]; wc.ID != 2 || wc.Status != rdma.StatusLocalProtection {
					t.Errorf("%+v", wc)
				}
				e.Want(t, 3, rdma.WCSend, rdma.StatusFlushed)
			})
		}
	}
	t.Run("receive buffer", func(t *testing.T) {
		p, e := rawToServer(t, nil, nil)
		if err := e.QP.PostRecv(rdma.RecvWR{ID: 1, SGL: []rdma.SGE{{Mem: make([]byte, 8), LKey: 0x4300}}}); err != nil {
			t.Fatal(err)
		}
		p.send(sendMsg(1, []byte("x")))
		if term := p.terminate(); term.Cause != wire.CauseDDPLocal {
			t.Errorf("Terminate says %v", term.Cause)
		}
		e.Want(t, 1, rdma.WCRecv, rdma.StatusLocalProtection)
	})
}

// Send with Invalidate of memory that must not be invalidated by a peer.
func TestInvalidateChecks(t *testing.T) {
	for _, what := range []string{"plain region", "other queue pair's window"} {
		t.Run(what, func(t *testing.T) {
			p, e := rawToServer(t, nil, nil)
			m := newMemory(t, e)
			e.Recv(t, 1, nil)
			stag := m.rw.RKey()
			if what != "plain region" {
				stag = m.stag
			}
			p.send(sendInvMsg(1, stag))
			if term := p.terminate(); term.Cause != wire.CauseRemoteNoInval {
				t.Errorf("Terminate says %v", term.Cause)
			}
			e.Want(t, 1, rdma.WCRecv, rdma.StatusFlushed)
			if !m.win.Valid() {
				t.Error("the window is gone")
			}
		})
	}
}
