package rdma_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"testing"
	"unsafe"

	"softiser/rdma"
	"softiser/rdma/internal/wire"
	"softiser/rdma/rdmatest"
)

func aligned(n int) []byte {
	w := make([]uint64, (n+7)/8)
	return unsafe.Slice((*byte)(unsafe.Pointer(&w[0])), len(w)*8)[:n]
}

func extPair(t *testing.T, p rdma.Provider, client, server bool, p2p rdma.P2PMode) (a, b *rdmatest.End) {
	return rdmatest.NewPair(t, &rdmatest.Options{
		Device: rdma.DeviceConfig{Provider: p},
		Client: rdma.ConnParams{Extensions: client, MPA: rdma.MPAParams{P2P: p2p}},
		Server: rdma.ConnParams{Extensions: server},
		Prepare: func(a, b *rdmatest.End) {
			for i := range 4 {
				a.Recv(t, uint64(100+i), make([]byte, 64))
				b.Recv(t, uint64(100+i), make([]byte, 64))
			}
		},
	})
}

func TestAtomicsAndImmediate(t *testing.T) {
	for _, c := range []struct {
		provider rdma.Provider
		p2p      rdma.P2PMode
	}{{p2p: rdma.P2POff}, {p2p: rdma.P2PWrite}, {p2p: rdma.P2PRead}, {p2p: rdma.P2PSend}, {provider: rdma.ProviderRoCE}} {
		t.Run(fmt.Sprint(c.provider, c.p2p), func(t *testing.T) {
			a, b := extPair(t, c.provider, true, true, c.p2p)
			imm := a.Dev.Attr().MaxImm & 0x1122334455667788
			mem := aligned(64)
			mr, err := b.PD.RegMR(mem, rdma.AccessLocalWrite|rdma.AccessRemoteWrite|rdma.AccessRemoteAtomic)
			if err != nil {
				t.Fatal(err)
			}
			defer mr.Dereg()
			atomic.StoreUint64((*uint64)(unsafe.Pointer(&mem[8])), 40)
			at := rdma.RemoteAddr{TO: mr.Addr() + 8, STag: mr.RKey()}
			old := make([]byte, 8)
			value := func(want uint64) {
				t.Helper()
				if got := binary.NativeEndian.Uint64(old); got != want {
					t.Fatalf("the original value is %d, want %d", got, want)
				}
			}
			sgl := []rdma.SGE{a.SGE(old)}
			a.Post(t, rdma.SendWR{ID: 1, Op: rdma.OpFetchAdd, SGL: sgl, Remote: at, Add: 2})
			a.Want(t, 1, rdma.WCFetchAdd, rdma.StatusSuccess)
			value(40)
			a.Post(t, rdma.SendWR{ID: 2, Op: rdma.OpCmpSwap, SGL: sgl, Remote: at, Compare: 42, Swap: 7})
			a.Want(t, 2, rdma.WCCmpSwap, rdma.StatusSuccess)
			value(42)
			a.Post(t, rdma.SendWR{ID: 3, Op: rdma.OpCmpSwap, SGL: sgl, Remote: at, Compare: 42, Swap: 9})
			a.Want(t, 3, rdma.WCCmpSwap, rdma.StatusSuccess)
			value(7)
			if got := atomic.LoadUint64((*uint64)(unsafe.Pointer(&mem[8]))); got != 7 {
				t.Fatalf("the word is %d, want 7", got)
			}
			a.Post(t, rdma.SendWR{ID: 4, Op: rdma.OpWriteImm, SGL: []rdma.SGE{a.SGE([]byte("data"))}, Remote: rdma.RemoteAddr{TO: mr.Addr(), STag: mr.RKey()}, Imm: imm, Flags: rdma.FlagSolicited})
			a.Want(t, 4, rdma.WCWrite, rdma.StatusSuccess)
			wc := b.Want(t, 100, rdma.WCRecvImm, rdma.StatusSuccess)
			if wc.Imm != imm || wc.Flags != rdma.WCWithImm|rdma.WCSolicited || string(mem[:4]) != "data" {
				t.Fatalf("%+v, memory %q", wc, mem[:4])
			}
			// The responder may use them as well.
			b.Post(t, rdma.SendWR{ID: 5, Op: rdma.OpImm, Imm: 5})
			b.Want(t, 5, rdma.WCImm, rdma.StatusSuccess)
			if wc := a.Want(t, 100, rdma.WCRecvImm, rdma.StatusSuccess); wc.Imm != 5 {
				t.Fatalf("%+v", wc)
			}
			if !a.QP.Extensions() || !b.QP.Extensions() {
				t.Error("the extensions are not reported as on")
			}
		})
	}
}

// With an end that does not take part, requests of the extension fail alone and
// the connection lives.
func TestExtensionsNeedBothEnds(t *testing.T) {
	for _, tt := range []struct{ client, server bool }{{true, false}, {false, true}, {false, false}} {
		t.Run(fmt.Sprint(tt), func(t *testing.T) {
			a, b := extPair(t, rdma.ProviderIWARP, tt.client, tt.server, rdma.P2POff)
			a.Post(t, rdma.SendWR{ID: 1, Op: rdma.OpImm})
			a.Want(t, 1, rdma.WCImm, rdma.StatusUnsupported)
			a.Post(t, rdma.SendWR{ID: 2, Op: rdma.OpSend})
			a.Want(t, 2, rdma.WCSend, rdma.StatusSuccess)
			b.Want(t, 100, rdma.WCRecv, rdma.StatusSuccess)
			b.Post(t, rdma.SendWR{ID: 3, Op: rdma.OpFetchAdd, SGL: []rdma.SGE{b.SGE(make([]byte, 8))}})
			b.Want(t, 3, rdma.WCFetchAdd, rdma.StatusUnsupported)
			b.Post(t, rdma.SendWR{ID: 4, Op: rdma.OpSend})
			b.Want(t, 4, rdma.WCSend, rdma.StatusSuccess)
			a.Want(t, 100, rdma.WCRecv, rdma.StatusSuccess)
		})
	}
}

// TestExtensionErrors: what a peer can do wrong once both ends have agreed on RFC 7306.
func TestExtensionErrors(t *testing.T) {
	announce := taggedMsg(wire.Write, 0x7306, 0x736f667469736572, true, nil)
	imm := func(msn uint32) []byte {
		return untagged(wire.Immediate, wire.QNSend, msn, 0, true, make([]byte, wire.ImmLen))
	}
	reply := func(id uint32) []byte {
		h := wire.AtomicReply{ID: id, Value: 7}
		return untagged(wire.AtomicResp, wire.QNAtomicResp, 1, 0, true, h.Append(nil))
	}
	for _, c := range []struct {
		name string
		ask  rdma.Opcode // what we have asked the peer for before; 0: nothing
		msgs func(stag uint32) [][]byte
		want wire.Cause
	}{
		{"opcode that nobody has assigned", 0, func(uint32) [][]byte {
			return [][]byte{untagged(12, wire.QNSend, 1, 0, true, make([]byte, 40))}
		}, wire.CauseOpcode},
		{"unknown atomic operation", 0, func(stag uint32) [][]byte {
			return [][]byte{atomicMsg(1, wire.Atomic{Op: 5, STag: stag, TO: 8, Data: 1})}
		}, wire.CauseOpcode},
		{"offset that is no multiple of 8", 0, func(stag uint32) [][]byte {
			return [][]byte{atomicMsg(1, wire.Atomic{Op: wire.FetchAdd, STag: stag, TO: 12, Data: 1})}
		}, wire.CauseStreamCatastroph},
		{"word at an odd address behind a good offset", 0, func(stag uint32) [][]byte {
			return [][]byte{atomicMsg(1, wire.Atomic{Op: wire.FetchAdd, STag: stag, TO: 8, Data: 1})}
		}, wire.CauseStreamCatastroph},
		{"Atomic Response that nobody waits for", 0, func(uint32) [][]byte { return [][]byte{reply(1)} }, wire.CauseOpcode},
		{"Atomic Response to a Read", rdma.OpRead, func(uint32) [][]byte { return [][]byte{reply(1)} }, wire.CauseOpcode},
		{"Atomic Response to another request", rdma.OpFetchAdd, func(uint32) [][]byte { return [][]byte{reply(99)} }, wire.CauseOpcode},
		{"Read Response to an atomic operation", rdma.OpFetchAdd, func(uint32) [][]byte {
			return [][]byte{taggedMsg(wire.ReadResponse, 1, 0, true, make([]byte, 8))}
		}, wire.CauseDDPLocal},
		{"Immediate Data inside a Send", 0, func(uint32) [][]byte {
			return [][]byte{untagged(wire.Send, wire.QNSend, 1, 0, false, make([]byte, 4)), imm(1)}
		}, wire.CauseMSNRange},
		{"Immediate Data without a buffer", 0, func(uint32) [][]byte { return [][]byte{imm(1), imm(2), imm(3)} }, wire.CauseNoBuffer},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, e := rawToServer(t, &rdmatest.Options{Server: rdma.ConnParams{Extensions: true, IRD: 4, ORD: 4}}, nil)
			e.Recv(t, 1, make([]byte, 16))
			e.Recv(t, 2, make([]byte, 16))
			mem := aligned(64)
			mr, err := e.PD.RegMR(mem[4:], rdma.AccessLocalWrite|rdma.AccessRemoteAtomic|rdma.AccessZeroBased)
			if err != nil {
				t.Fatal(err)
			}
			defer mr.Dereg()
			p.send(announce)
			if c.ask != 0 {
				e.Post(t, rdma.SendWR{ID: 9, Op: c.ask, SGL: []rdma.SGE{e.SGE(make([]byte, 8))}, Remote: rdma.RemoteAddr{STag: 1}})
				for { // our announcement comes first
					if u := p.recv(); wire.Control(binary.BigEndian.Uint16(u)).Op() != wire.Write {
						break
					}
				}
			}
			p.send(c.msgs(mr.RKey())...)
			if term := p.terminate(); term.Cause != c.want {
				t.Errorf("Terminate says %v, want %v", term.Cause, c.want)
			}
			if err := e.WaitDone(t); err == nil {
				t.Error("the queue pair does not say why it ended")
			}
			if !bytes.Equal(mem, make([]byte, len(mem))) {
				t.Error("memory was changed")
			}
		})
	}
}
