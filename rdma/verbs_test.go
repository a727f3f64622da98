package rdma_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"testing"

	"softiser/rdma"
	"softiser/rdma/rdmatest"
)

func pattern(n int, seed uint64) []byte {
	b := make([]byte, n+8)
	r := rand.NewPCG(seed, uint64(n))
	for i := 0; i < n; i += 8 {
		binary.NativeEndian.PutUint64(b[i:], r.Uint64())
	}
	return b[:n:n]
}

var sizes = []int{0, 1, 3, 4, 100, 255, 256, 257, 1423, 1424, 1425, 4095, 4096, 5000, 64748, 64754, 65536, 200_001, 1 << 20, 5<<20 + 3}

// forEach runs a test on queue pairs of each provider.
func forEach(t *testing.T, f func(*testing.T, *rdmatest.Options)) {
	for _, p := range []rdma.Provider{rdma.ProviderIWARP, rdma.ProviderRoCE} {
		t.Run(p.String(), func(t *testing.T) { f(t, &rdmatest.Options{Device: rdma.DeviceConfig{Provider: p}}) })
	}
}

// Every kind of transfer, at sizes around every threshold, CRC on and off.
func TestTransfers(t *testing.T) {
	for name, o := range map[string]*rdmatest.Options{
		"required":  {Client: rdma.ConnParams{CRC: rdma.CRCRequired}, Server: rdma.ConnParams{CRC: rdma.CRCRequired}},
		"off":       {Client: rdma.ConnParams{CRC: rdma.CRCOff}, Server: rdma.ConnParams{CRC: rdma.CRCOff}},
		"roce":      {Device: rdma.DeviceConfig{Provider: rdma.ProviderRoCE}},
		"roce, 256": {Device: rdma.DeviceConfig{Provider: rdma.ProviderRoCE}, Client: rdma.ConnParams{RoCE: rdma.RoCEParams{PathMTU: 256}}},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := rdmatest.NewPair(t, o)
			if a.QP.CRC() != (name != "off") {
				t.Fatalf("CRC is %v", a.QP.CRC())
			}
			mem := make([]byte, 6<<20)
			mr, err := b.PD.RegMR(mem, rdma.AccessLocalWrite|rdma.AccessRemoteRead|rdma.AccessRemoteWrite)
			if err != nil {
				t.Fatal(err)
			}
			defer mr.Dereg()
			for i, n := range sizes {
				id := uint64(i)
				want := pattern(n, id)

				got := make([]byte, n)
				b.Recv(t, id, got)
				a.Post(t, rdma.SendWR{ID: id, Op: rdma.OpSend, SGL: []rdma.SGE{a.SGE(want)}})
				a.Want(t, id, rdma.WCSend, rdma.StatusSuccess)
				if wc := b.Want(t, id, rdma.WCRecv, rdma.StatusSuccess); int(wc.ByteLen) != n {
					t.Fatalf("Send of %d bytes arrived as %d", n, wc.ByteLen)
				}
				if !bytes.Equal(got, want) {
					t.Fatalf("Send of %d bytes: wrong data", n)
				}

				clear(mem)
				off := i * 7
				rem := rdma.RemoteAddr{TO: mr.Addr() + uint64(off), STag: mr.RKey()}
				b.Recv(t, id, nil)
				if err := a.QP.PostSend(
					rdma.SendWR{ID: id, Op: rdma.OpWrite, SGL: []rdma.SGE{a.SGE(want[:n/3]), a.SGE(want[n/3:])}, Remote: rem},
					rdma.SendWR{ID: id + 1000, Op: rdma.OpSend, Flags: rdma.FlagSignaled}); err != nil {
					t.Fatal(err)
				}
				a.Want(t, id+1000, rdma.WCSend, rdma.StatusSuccess)
				b.Want(t, id, rdma.WCRecv, rdma.StatusSuccess)
				if !bytes.Equal(mem[off:off+n], want) {
					t.Fatalf("Write of %d bytes: wrong data", n)
				}

				clear(got)
				a.Post(t, rdma.SendWR{ID: id, Op: rdma.OpRead, SGL: []rdma.SGE{a.SGE(got[:n/2]), a.SGE(got[n/2:])}, Remote: rem})
				a.Want(t, id, rdma.WCRead, rdma.StatusSuccess)
				if !bytes.Equal(got, want) {
					t.Fatalf("Read of %d bytes: wrong data", n)
				}
			}
			a.QP.Disconnect()
			if err := a.WaitDone(t); err != nil {
				t.Errorf("after Disconnect: %v", err)
			}
			if err := b.WaitDone(t); !errors.Is(err, io.EOF) {
				t.Errorf("at the peer: %v, want EOF", err)
			}
		})
	}
}

func TestSendInvalidatesWindow(t *testing.T) {
	forEach(t, sendInvalidatesWindow)
}

func sendInvalidatesWindow(t *testing.T, o *rdmatest.Options) {
	a, b := rdmatest.NewPair(t, o)
	w, err := a.PD.AllocWindow()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	mem := make([]byte, 8192)
	stag, base, err := w.Bind(a.QP, [][]byte{mem[:100], mem[4096:8092]}, rdma.AccessRemoteWrite|rdma.AccessLocalWrite)
	if err != nil {
		t.Fatal(err)
	}
	a.Recv(t, 1, make([]byte, 16))
	// The responder may not send before it has received something.
	b.Recv(t, 9, make([]byte, 16))
	a.Post(t, rdma.SendWR{ID: 2, Op: rdma.OpSend})
	a.Want(t, 2, rdma.WCSend, rdma.StatusSuccess)
	b.Want(t, 9, rdma.WCRecv, rdma.StatusSuccess)

	data := pattern(4096, 1)
	if err := b.QP.PostSend(
		rdma.SendWR{Op: rdma.OpWrite, SGL: []rdma.SGE{b.SGE(data)}, Remote: rdma.RemoteAddr{TO: base, STag: stag}},
		rdma.SendWR{ID: 3, Op: rdma.OpSendInv, Flags: rdma.FlagSignaled | rdma.FlagInline | rdma.FlagSolicited, SGL: []rdma.SGE{{Mem: []byte("done")}}, InvSTag: stag}); err != nil {
		t.Fatal(err)
	}
	wc := a.Want(t, 1, rdma.WCRecv, rdma.StatusSuccess)
	if wc.Flags&rdma.WCWithInv == 0 || wc.InvSTag != stag || wc.Flags&rdma.WCSolicited == 0 {
		t.Errorf("completion %+v does not tell of the invalidation of %#x", wc, stag)
	}
	if w.Valid() {
		t.Error("the window is still valid")
	}
	if !bytes.Equal(mem[:100], data[:100]) || !bytes.Equal(mem[4096:8092], data[100:]) {
		t.Error("wrong data in the window")
	}
	b.Want(t, 3, rdma.WCSend, rdma.StatusSuccess)
}
