package rdma_test

import (
	"bytes"
	"encoding/binary"
	"testing"

	"softiser/internal/await"
	"softiser/rdma"
	"softiser/rdma/internal/wire"
	"softiser/rdma/rdmatest"
)

// A peer that has made a mistake gets the rest of what was being sent, and then a Terminate. What it
// is late in reading of an answer to its RDMA Read is not taken from memory that has been given back
// meanwhile: that may be in use for something else.
func TestRevokedBeforeTerminate(t *testing.T) {
	const small = 32 << 10 // of each socket's buffer: less than a round
	o := &rdmatest.Options{Server: rdma.ConnParams{CRC: rdma.CRCOff, SndBuf: small}}
	p, e := rawToServer(t, o, plainRequest())
	if err := p.nc.SetReadBuffer(small); err != nil {
		t.Fatal(err)
	}
	const old, new = 0x11, 0xee
	mem := bytes.Repeat([]byte{old}, 4<<20)
	mr, err := e.PD.RegMR(mem, rdma.AccessRemoteRead)
	if err != nil {
		t.Fatal(err)
	}
	p.send(readMsg(1, wire.ReadReq{SinkSTag: 1, Size: uint32(len(mem)), SrcSTag: mr.RKey(), SrcTO: mr.Addr()}))
	await.True(t, "the answer has begun", func() bool { return e.QP.Stats().WireOut > 0 })
	p.send(taggedMsg(wire.Write, mr.RKey(), mr.Addr(), true, []byte("which it may not")))
	await.True(t, "the connection is ending", func() bool { return e.QP.State() >= rdma.StateTerminate })
	if err := mr.Dereg(); err != nil {
		t.Fatal(err)
	}
	for i := range mem {
		mem[i] = new
	}
	for b := p.recvUntilEnd(); b != nil; b = p.recvUntilEnd() {
		if wire.Control(binary.BigEndian.Uint16(b)).Op() != wire.ReadResponse {
			continue
		}
		if at := bytes.IndexByte(b[wire.TaggedLen:], new); at >= 0 {
			t.Fatalf("byte %d of a message of %d is of what the memory was used for afterwards", at, len(b))
		}
	}
	<-e.QP.Done()
}
