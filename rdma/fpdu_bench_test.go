package rdma_test

import (
	"fmt"
	"io"
	"testing"

	"softiser/rdma"
	"softiser/rdma/internal/mpa"
	"softiser/rdma/internal/wire"
	"softiser/rdma/rdmatest"
)

// fpduSizes are payloads of one FPDU: what fits a segment of Ethernet (as siw
// sends), a block, and close to the largest.
var fpduSizes = []int{1408, 4096, 64000}

// BenchmarkFPDURx is the receiver alone: a peer that only writes prepared FPDUs
// of RDMA Write, some 64 KiB of them at a time.
func BenchmarkFPDURx(b *testing.B) {
	for _, size := range fpduSizes {
		for _, crc := range []rdma.CRCMode{rdma.CRCOff, rdma.CRCRequired} {
			b.Run(fmt.Sprintf("%d/crc-%v", size, crc), func(b *testing.B) { fpduRx(b, size, crc) })
		}
	}
}

func fpduRx(b *testing.B, size int, crc rdma.CRCMode) {
	f := &mpa.Frame{Rev: 2, Enhanced: true, IRD: 16, ORD: 16}
	if crc == rdma.CRCRequired {
		f.Flags = mpa.FlagCRC
	}
	p, e := rawToServer(b, &rdmatest.Options{Server: rdma.ConnParams{CRC: crc}}, f)
	mem := make([]byte, 1<<20)
	mr, err := e.PD.RegMR(mem, rdma.AccessLocalWrite|rdma.AccessRemoteWrite)
	if err != nil {
		b.Fatal(err)
	}
	defer mr.Dereg()
	payload := make([]byte, size)
	n := max(1, 64<<10/size)
	var batch []byte
	for i := range n {
		h := wire.Tagged{Ctrl: wire.Ctrl(wire.Write, true), STag: mr.RKey(), TO: mr.Addr() + uint64(i*size)}
		batch = append(batch, p.fpdu(append(h.Append(nil), payload...))...)
	}
	one := len(batch) / n
	b.SetBytes(int64(size))
	b.ReportAllocs()
	e.Recv(b, 1, nil)
	b.ResetTimer()
	for left := b.N; left > 0; left -= n {
		p.write(batch[:one*min(n, left)])
	}
	// An empty Send behind them tells that they are in memory.
	h := wire.Untagged{Ctrl: wire.Ctrl(wire.Send, true), QN: wire.QNSend, MSN: 1}
	p.send(h.Append(nil))
	e.Want(b, 1, rdma.WCRecv, rdma.StatusSuccess)
	b.StopTimer()
	st := e.QP.Stats()
	b.ReportMetric(float64(st.RecvCalls)/float64(b.N), "calls/op")
}

// BenchmarkFPDUTx is the transmitter alone: RDMA Writes of one FPDU each, 32
// outstanding, to a peer that throws away what comes.
func BenchmarkFPDUTx(b *testing.B) {
	for _, size := range fpduSizes {
		for _, crc := range []rdma.CRCMode{rdma.CRCOff, rdma.CRCRequired} {
			b.Run(fmt.Sprintf("%d/crc-%v", size, crc), func(b *testing.B) { fpduTx(b, size, crc) })
		}
	}
}

func fpduTx(b *testing.B, size int, crc rdma.CRCMode) {
	const depth = 32
	var e *rdmatest.End
	payload := make([]byte, size)
	sgl := make([]rdma.SGE, 1)
	posted, ended, total := 0, 0, 0
	finished := make(chan struct{}, 1)
	post := func() {
		posted++
		sgl[0] = e.SGE(payload)
		_ = e.QP.Enqueue(&rdma.SendWR{Op: rdma.OpWrite, Flags: rdma.FlagSignaled, SGL: sgl, Remote: rdma.RemoteAddr{STag: 0x100}})
	}
	wcs := make([]rdma.WC, 64)
	o := &rdmatest.Options{Client: rdma.ConnParams{CRC: crc, ORD: depth, MPA: rdma.MPAParams{GSO: true}}, Handlers: [2]func(*rdma.CQ){func(cq *rdma.CQ) {
		for n := cq.Poll(wcs); n > 0; n = cq.Poll(wcs) {
			for _, wc := range wcs[:n] {
				if wc.Status != rdma.StatusSuccess {
					return
				}
				if ended++; ended == total {
					finished <- struct{}{}
				}
				if posted < total {
					post()
				}
			}
		}
		e.QP.Push()
	}}}
	p, end := rawToClient(b, o)
	e = end
	go io.Copy(io.Discard, p.nc)
	run := func(n int) {
		total, ended, posted = n, 0, 0
		for range min(n, depth) {
			post()
		}
		e.QP.Push()
		<-finished
	}
	b.SetBytes(int64(size))
	b.ReportAllocs()
	b.ResetTimer()
	run(b.N)
	b.StopTimer()
	st := e.QP.Stats()
	b.ReportMetric(float64(st.SendCalls)/float64(b.N), "calls/op")
	b.ReportMetric(float64(st.FPDUsOut)/float64(b.N), "fpdus/op")
}
