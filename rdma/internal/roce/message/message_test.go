package message_test

import (
	"bytes"
	"runtime"
	"sync/atomic"
	"testing"

	"softiser/internal/faultmap"
	"softiser/internal/race"
	"softiser/rdma/internal/mem"
	"softiser/rdma/internal/roce/message"
	"softiser/rdma/internal/roce/packet"
	"softiser/rdma/internal/verbs"
	"softiser/rdma/internal/verbstest"
)

const everything = mem.RemoteRead | mem.RemoteWrite | mem.ZeroBased

// pair is a queue pair whose requests are its own to execute.
type pair struct {
	*verbstest.QP
	t   *testing.T
	in  message.In
	mem []byte
	key uint32
	reg *mem.Region
}

func newPair(t *testing.T) *pair {
	p := &pair{QP: verbstest.NewQP(t), t: t, mem: make([]byte, 4096)}
	p.key, p.reg = p.Open(t, p.mem, everything)
	p.in.Init(p.QP.QP, packet.MTU256)
	p.Connect()
	return p
}

// give executes a packet, if it fits.
func (p *pair) give(op packet.Opcode, payload []byte, change func(*packet.Packet)) *message.Fault {
	pkt := packet.Packet{BTH: packet.BTH{Op: op}, Payload: payload}
	pkt.RETH = packet.RETH{RKey: p.key, Len: uint32(len(payload))}
	if change != nil {
		change(&pkt)
	}
	if why := p.in.Misfit(&pkt, op.Traits()); why != "" {
		return &message.Fault{Reason: why}
	}
	return p.in.Execute(&pkt, op.Traits())
}

// data is n bytes, no packet of which is as another one.
func data(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + i>>8*31 + 1)
	}
	return b
}

// Every kind of message, of every length around the MTU, of each service, arrives as it
// was posted, with the opcodes of that service.
func TestMessages(t *testing.T) {
	for _, service := range []packet.Opcode{packet.RC, packet.UC} {
		for _, op := range []verbs.Opcode{verbs.OpSend, verbs.OpSendImm, verbs.OpSendInv, verbs.OpWrite, verbs.OpWriteImm, verbs.OpImm} {
			for _, n := range []int{0, 1, 255, 256, 257, 512, 700} {
				if service == packet.UC && op == verbs.OpSendInv || op == verbs.OpImm && n > 0 {
					continue // there is none
				}
				p := newPair(t)
				buf, body := p.Buffer(t, 700), data(n)
				window := make([]byte, 8)
				wkey, wreg := p.Open(t, window, everything)
				p.Queue(op, body, func(e *verbs.WQE) {
					e.Flags, e.Imm, e.Inv = verbs.FlagSolicited, 77, wkey
					e.Remote = verbs.RemoteAddr{TO: 8, STag: p.key}
				})
				e, packets := p.SQ.At(0), max(1, (n+255)/256)
				var out message.Outgoing // for one packet after another
				for i := range packets {
					out.Packet = packet.Packet{BTH: packet.BTH{Op: service}}
					out.Hold(wreg)
					wreg.Hold()
					message.Segment(&out, e, uint64(i)*256, 256)
					if out.Packet.Op.Service() != service {
						t.Fatalf("%v: packet %d is %v", op, i, out.Packet.Op)
					}
					out.Packet.Payload = bytes.Join(out.Payload, nil)
					out.Release()
					if f := p.give(out.Packet.Op, out.Packet.Payload, func(q *packet.Packet) { *q = out.Packet }); f != nil {
						t.Fatalf("%v of %d bytes, packet %d: %v", op, n, i, f.Reason)
					}
				}
				if p.in.Open() {
					t.Errorf("%v of %d bytes has not ended", op, n)
				}
				want := verbs.WC{ID: 1, QP: p.QP.QP, Opcode: verbs.WCRecv, Flags: verbs.WCSolicited, ByteLen: uint32(n)}
				switch op {
				case verbs.OpSendImm:
					want.Flags |= verbs.WCWithImm
				case verbs.OpSendInv:
					want.Flags, want.InvSTag = want.Flags|verbs.WCWithInv, wkey
				case verbs.OpWriteImm, verbs.OpImm:
					want.Opcode, want.Flags = verbs.WCRecvImm, want.Flags|verbs.WCWithImm
				}
				wcs := p.in.TakeWCs(nil)
				if op == verbs.OpWrite {
					if len(wcs) != 0 {
						t.Errorf("%v completes %+v", op, wcs)
					}
				} else if len(wcs) != 1 {
					t.Errorf("%v of %d bytes: %d completions", op, n, len(wcs))
				} else {
					if want.Imm = wcs[0].Imm; want.Flags&verbs.WCWithImm != 0 {
						want.Imm = 77 // without the flag it says nothing
					}
					if wcs[0] != want {
						t.Errorf("%v of %d bytes completes\n%+v, want\n%+v", op, n, wcs[0], want)
					}
				}
				if op == verbs.OpSend || op == verbs.OpSendImm || op == verbs.OpSendInv {
					if !bytes.Equal(buf[:n], body) {
						t.Errorf("%v of %d bytes: other bytes", op, n)
					}
				} else if !bytes.Equal(p.mem[8:8+n], body) {
					t.Errorf("%v of %d bytes: other bytes", op, n)
				}
				if wreg.State().Valid == (op == verbs.OpSendInv) {
					t.Errorf("%v: the window is valid: %v", op, wreg.State().Valid)
				}
			}
		}
	}
}

// What a completion says of a message with immediate data.
func TestImmediateData(t *testing.T) {
	p := newPair(t)
	p.Buffer(t, 10)
	p.Buffer(t, 0)
	imm := func(q *packet.Packet) { q.Imm, q.Solicited = 0xfeedface, true }
	if f := p.give(packet.SendOnlyImm, data(3), imm); f != nil {
		t.Fatal(f.Reason)
	}
	if f := p.give(packet.WriteOnlyImm, data(5), imm); f != nil {
		t.Fatal(f.Reason)
	}
	flags := verbs.WCWithImm | verbs.WCSolicited
	want := []verbs.WC{
		{ID: 1, QP: p.QP.QP, Opcode: verbs.WCRecv, Flags: flags, ByteLen: 3, Imm: 0xfeedface},
		{ID: 2, QP: p.QP.QP, Opcode: verbs.WCRecvImm, Flags: flags, ByteLen: 5, Imm: 0xfeedface},
	}
	got := p.in.TakeWCs(nil)
	if len(got) != 2 || got[0] != want[0] || got[1] != want[1] {
		t.Errorf("%+v,\nwant %+v", got, want)
	}
	if more := p.in.TakeWCs(nil); len(more) != 0 {
		t.Errorf("told twice: %+v", more)
	}
}

// A message that is dropped leaves its receive buffer to the next one; one that fails
// completes it. Without a buffer nothing happens.
func TestDropAndFail(t *testing.T) {
	p := newPair(t)
	if f := p.give(packet.SendFirst, data(256), nil); f != message.NoBuffer || p.in.Open() {
		t.Errorf("without a buffer: %+v", f)
	}
	if f := p.give(packet.WriteOnlyImm, data(4), nil); f != message.NoBuffer || p.mem[0] != 0 {
		t.Errorf("a WRITE without a buffer: %+v, memory %d", f, p.mem[0])
	}
	buf := p.Buffer(t, 300)
	if f := p.give(packet.SendFirst, data(256), nil); f != nil {
		t.Fatal(f.Reason)
	}
	p.in.Drop()
	if f := p.give(packet.SendLast, data(1), nil); f == nil {
		t.Error("a dropped message goes on")
	}
	if f := p.give(packet.SendOnly, []byte("again"), nil); f != nil {
		t.Fatal(f.Reason)
	}
	if wcs := p.in.TakeWCs(nil); len(wcs) != 1 || wcs[0].ID != 1 || string(buf[:5]) != "again" {
		t.Errorf("%+v, %q", wcs, buf[:5])
	}
	p.Buffer(t, 300)
	if f := p.give(packet.SendFirst, data(256), nil); f != nil {
		t.Fatal(f.Reason)
	}
	p.in.Fail(verbs.StatusFlushed)
	if wcs := p.in.TakeWCs(nil); len(wcs) != 1 || wcs[0].ID != 2 || wcs[0].Status != verbs.StatusFlushed {
		t.Errorf("%+v", wcs)
	}
	p.in.Fail(verbs.StatusFlushed)
	if wcs := p.in.TakeWCs(nil); len(wcs) != 0 {
		t.Errorf("it fails twice: %+v", wcs)
	}
}

// An invalidation, by the peer or by this side, that meets a new binding of the same window leaves
// that alone, whichever of the two comes first.
func TestInvalidationLeavesNewBinding(t *testing.T) {
	for name, invalidate := range map[string]func(p *pair, key uint32){
		"by the peer": func(p *pair, key uint32) {
			p.Buffer(t, 1)
			p.give(packet.SendOnlyInv, nil, func(q *packet.Packet) { q.InvRKey = key })
			p.in.TakeWCs(nil)
		},
		"by this side": func(p *pair, key uint32) { p.Local(&verbs.WQE{Op: verbs.OpLocalInv, Inv: key}) },
	} {
		t.Run(name, func(t *testing.T) {
			rounds := int64(50_000)
			if race.Enabled {
				rounds /= 10
			}
			p := newPair(t)
			key, w := p.Open(t, make([]byte, 8), everything)
			segs := [][]byte{make([]byte, 8)}
			var begun, bound atomic.Int64
			go func() {
				for i := int64(1); i <= rounds; i++ {
					for begun.Load() < i {
						runtime.Gosched()
					}
					for range i % 100 { // at another moment of the invalidation each time
						begun.Load()
					}
					w.Revoke()
					w.OpenKey(&p.Mem, segs, everything, uint8(key)+uint8(i))
					bound.Store(i)
				}
			}()
			old := key
			for i := int64(1); i <= rounds; i++ {
				begun.Store(i)
				invalidate(p, old)
				for bound.Load() < i {
					runtime.Gosched()
				}
				now := w.State()
				if old = now.STag; !now.Valid {
					t.Errorf("round %d: key %#08x is not valid", i, old)
					begun.Store(rounds)
					break
				}
			}
			for bound.Load() < rounds {
				runtime.Gosched()
			}
		})
	}
}

// A receive buffer lies in the region that its key names, which may be written to.
func TestReceiveKeys(t *testing.T) {
	for name, tt := range map[string]struct {
		access mem.Access
		at, n  int // of the buffer, in a region of 8 bytes at 4
		ok     bool
	}{
		"all of it":         {mem.LocalWrite, 4, 8, true},
		"a part":            {mem.LocalWrite, 6, 2, true},
		"before it":         {mem.LocalWrite, 3, 4, false},
		"behind it":         {mem.LocalWrite, 8, 5, false},
		"not to be written": {0, 4, 8, false},
	} {
		p := newPair(t)
		var region mem.Region
		region.Init(p.PD)
		if err := p.Dev.Table.Insert(&region); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 16)
		key, _ := region.Open(nil, [][]byte{buf[4:12]}, tt.access)
		p.RQ.Lock()
		b, err := p.RQ.PostLocked(1)
		if err != nil {
			t.Fatal(err)
		}
		b.Add(buf[tt.at:][:tt.n], key)
		p.RQ.Unlock()
		if f := p.give(packet.SendOnly, data(2), nil); (f == nil) != tt.ok || (buf[tt.at] == data(1)[0]) != tt.ok {
			t.Errorf("%s: %+v, % x", name, f, buf)
		}
	}
}

// A WRITE of no bytes needs no memory: neither key nor address count (vol. 1 §9.7.4.1.5).
func TestEmptyWrite(t *testing.T) {
	p := newPair(t)
	if f := p.give(packet.WriteOnly, nil, func(q *packet.Packet) { q.RETH.RKey, q.RETH.VA = 1<<30, 1<<40 }); f != nil {
		t.Error(f.Reason)
	}
}

// What is wrong with packets that fit.
func TestFaults(t *testing.T) {
	for _, e := range []struct {
		name     string
		do       func(p *pair) *message.Fault
		syndrome packet.Syndrome
		status   verbs.Status
	}{
		{"SEND too long", func(p *pair) *message.Fault {
			p.Buffer(t, 3)
			return p.give(packet.SendOnly, data(4), nil)
		}, packet.NAKInvalidRequest, verbs.StatusLocalLength},
		{"buffer that cannot be touched", func(p *pair) *message.Fault {
			p.BufferAt(t, faultmap.New(t, 4096, 0))
			return p.give(packet.SendOnly, data(4), nil)
		}, packet.NAKRemoteOperational, verbs.StatusLocalFault},
		{"WRITE of more than 2 GiB", func(p *pair) *message.Fault {
			return p.give(packet.WriteFirst, data(256), func(q *packet.Packet) { q.RETH.Len = packet.MaxMessage + 1 })
		}, packet.NAKInvalidRequest, 0},
		{"WRITE past the region", func(p *pair) *message.Fault {
			return p.give(packet.WriteOnly, data(2), func(q *packet.Packet) { q.RETH.VA = 4095 })
		}, packet.NAKRemoteAccess, 0},
		{"WRITE longer than announced", func(p *pair) *message.Fault {
			return p.give(packet.WriteOnly, data(2), func(q *packet.Packet) { q.RETH.Len = 1 })
		}, packet.NAKInvalidRequest, 0},
		{"WRITE First with all of it", func(p *pair) *message.Fault {
			return p.give(packet.WriteFirst, data(256), nil)
		}, packet.NAKInvalidRequest, 0},
		{"WRITE of 2 GiB to a region that is smaller", func(p *pair) *message.Fault {
			return p.give(packet.WriteFirst, data(256), func(q *packet.Packet) { q.RETH.Len = packet.MaxMessage })
		}, packet.NAKRemoteAccess, 0},
		{"WRITE to nothing", func(p *pair) *message.Fault {
			return p.give(packet.WriteOnly, data(2), func(q *packet.Packet) { q.RETH.RKey = 1 << 30 })
		}, packet.NAKRemoteAccess, 0},
		{"WRITE to memory that is revoked meanwhile", func(p *pair) *message.Fault {
			key, reg := p.Open(t, make([]byte, 512), everything)
			head := func(q *packet.Packet) { q.RETH = packet.RETH{RKey: key, Len: 300} }
			if f := p.give(packet.WriteFirst, data(256), head); f != nil {
				t.Error(f.Reason)
			}
			reg.Revoke()
			return p.give(packet.WriteLast, data(44), head)
		}, packet.NAKRemoteAccess, verbs.StatusFlushed},
		{"receive buffer of a key that is none", func(p *pair) *message.Fault {
			p.RQ.Lock()
			b, err := p.RQ.PostLocked(1)
			if err != nil {
				t.Fatal(err)
			}
			b.Add(make([]byte, 8), 1<<30)
			p.RQ.Unlock()
			return p.give(packet.SendOnly, data(4), nil)
		}, packet.NAKRemoteOperational, verbs.StatusLocalProtection},
		{"key that only this side may invalidate", func(p *pair) *message.Fault {
			p.Buffer(t, 1)
			own := new(mem.Region)
			own.Init(p.PD)
			if err := p.Dev.Table.Insert(own); err != nil {
				t.Fatal(err)
			}
			key, _ := own.Open(&p.Mem, [][]byte{make([]byte, 8)}, everything)
			f := p.give(packet.SendOnlyInv, nil, func(q *packet.Packet) { q.InvRKey = key })
			if wcs := p.in.TakeWCs(nil); !own.State().Valid || len(wcs) != 1 || wcs[0].Status != verbs.StatusRemoteInvalid {
				t.Errorf("a key that only this side may invalidate is valid: %v, %+v", own.State().Valid, wcs)
			}
			return f
		}, packet.ACK, 0},
		{"key that is nothing to invalidate", func(p *pair) *message.Fault {
			p.Buffer(t, 1)
			return p.give(packet.SendOnlyInv, nil, func(q *packet.Packet) { q.InvRKey = p.key ^ 1 })
		}, packet.ACK, 0},
	} {
		p := newPair(t)
		f := e.do(p)
		p.reg.Revoke() // nobody holds it any more
		if f == nil || f.Syndrome != e.syndrome || f.Status != e.status || f.Reason == "" {
			t.Errorf("%s: %+v", e.name, f)
		}
	}
}
