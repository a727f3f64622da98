package rdma_test

import (
	"io"
	"testing"

	"softiser/rdma"
	"softiser/rdma/internal/mpa"
	"softiser/rdma/internal/wire"
	"softiser/rdma/rdmatest"
)

// FuzzStream feeds any bytes to a connected queue pair. Nothing may crash or hang,
// and memory that is not lent must stay as it is.
func FuzzStream(f *testing.F) {
	p := &rawPeer{}
	f.Add(p.fpdu(sendMsg(1, []byte("hello"))))
	f.Add(p.fpdu(readMsg(1, wire.ReadReq{SinkSTag: 1, Size: 100})))
	f.Add(p.fpdu(taggedMsg(wire.Write, 1, 0, true, nil)))
	f.Add(append(p.fpdu(untagged(wire.Send, 0, 1, 0, false, []byte("he"))), p.fpdu(untagged(wire.Send, 0, 1, 2, true, []byte("llo")))...))
	f.Add(p.fpdu(untagged(wire.Terminate, wire.QNTerminate, 1, 0, true, []byte{0x11, 0, 0xc0, 0, 0, 20})))
	f.Add(p.fpdu(taggedMsg(wire.ReadResponse, 1, 0, true, []byte("data"))))
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, in []byte) {
		req := &mpa.Frame{Rev: 2, Enhanced: true, IRD: 16, ORD: 16}
		p, e := rawToServer(t, &rdmatest.Options{Server: rdma.ConnParams{CRC: rdma.CRCOffered, Extensions: true}}, req)
		mem := make([]byte, 64)
		mr, err := e.PD.RegMR(mem, rdma.AccessLocalWrite|rdma.AccessRemoteRead)
		if err != nil {
			t.Fatal(err)
		}
		defer mr.Dereg()
		for i := range 4 {
			e.Recv(t, uint64(i), make([]byte, 32))
		}
		if _, err := p.nc.Write(in); err != nil {
			return
		}
		_ = p.nc.CloseWrite()
		go func() { _, _ = io.Copy(io.Discard, p.nc); p.nc.Close() }()
		e.WaitDone(t)
		e.Poll(t, 4) // every buffer comes back
		for _, b := range mem {
			if b != 0 {
				t.Fatal("memory without remote write access was written")
			}
		}
	})
}
