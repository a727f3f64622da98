package nvmf_test

import (
	"bytes"
	"context"
	"math/rand/v2"
	"net"
	"testing"
	"time"

	"softiser/internal/await"
	"softiser/internal/nvme"
	"softiser/internal/nvmerdma"
	"softiser/rdma"
)

// Hosts that send capsules with bytes changed, behind a Connect that is good or nearly so:
// each loses its connection at most, and one that behaves keeps its data.
func TestHostileOverRDMA(t *testing.T) {
	r := open(t, nil)
	_, io := r.attachRDMA(t, nvmerdma.InCapsule)
	want := pattern(64<<10, 1)
	if _, err := io.do(rw(nvme.OpWrite, 1024, 128), bytes.Clone(want)); err != nil {
		t.Fatal(err)
	}
	dev, err := rdma.Open(nil)
	if err != nil {
		t.Fatal(err)
	}
	pd, err := dev.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	answers := 0
	for seed := range uint64(40) {
		answers += hostile(t, r.addr, dev, pd, rand.New(rand.NewPCG(seed, 41)))
		got := make([]byte, len(want))
		if _, err := io.do(rw(nvme.OpRead, 1024, 128), got); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("after seed %d: %v", seed, err)
		}
	}
	if answers < 200 {
		t.Errorf("only %d commands were answered", answers)
	}
	await.True(t, "the end of hostile hosts", func() bool { return len(r.srv.Controllers()) == 1 })
	if err := pd.Dealloc(); err != nil {
		t.Error(err)
	}
	if err := dev.Close(); err != nil {
		t.Error(err)
	}
}

// hostile is one such host; it returns how many answers it has had.
func hostile(t *testing.T, addr string, dev *rdma.Device, pd *rdma.PD, rnd *rand.Rand) (answers int) {
	t.Helper()
	cq, err := dev.CreateCQ(rdma.CQConfig{Depth: 256})
	if err != nil {
		t.Fatal(err)
	}
	qp, err := pd.CreateQP(rdma.QPConfig{SendCQ: cq, RecvCQ: cq})
	if err != nil {
		t.Fatal(err)
	}
	w, err := pd.AllocWindow()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = qp.Close()
		_ = w.Close()
		_ = cq.Close()
	}()
	for i := range 64 {
		if err := qp.PostRecv(rdma.RecvWR{ID: uint64(i), SGL: []rdma.SGE{{Mem: make([]byte, nvme.CQELen), LKey: pd.LocalDMAKey()}}}); err != nil {
			t.Fatal(err)
		}
	}
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	q := nvmerdma.Request{HostRecv: 32, HostSend: 31}
	if _, err := rdma.Client(ctx, nc, qp, &rdma.ConnParams{PrivateData: q.AppendTo(nil), IRD: 1 + rnd.IntN(4)}); err != nil {
		t.Fatal(err)
	}
	d := nvme.ConnectData{HostID: nvme.HostID{15: 200}, CntlID: nvme.CntlIDDynamic, Subsystem: subNQN, Host: "nqn.hostile"}
	data := append(d.AppendTo(nil), make([]byte, 4096)...)
	stag, base, err := w.Bind(qp, [][]byte{data}, rdma.AccessRemoteRead|rdma.AccessRemoteWrite|rdma.AccessLocalWrite)
	if err != nil {
		t.Fatal(err)
	}
	// send posts a capsule, with some bytes changed.
	send := func(s *nvme.SQE, extra, changes int) {
		b := append(s[:], make([]byte, extra)...)
		for range changes {
			b[rnd.IntN(len(b))] = byte(rnd.Uint32())
		}
		if nvme.Opcode(b[0]) == nvme.AdminAsyncEvent {
			b[0] = byte(nvme.AdminKeepAlive) // which is answered
		}
		if rnd.IntN(20) == 0 {
			b = b[:rnd.IntN(len(b))]
		}
		_ = qp.PostSend(rdma.SendWR{ID: 1000, Op: rdma.OpSend, SGL: []rdma.SGE{{Mem: b, LKey: pd.LocalDMAKey()}}}) // it may have ended
	}
	answered := func() bool {
		for end := time.Now().Add(20 * time.Second); time.Now().Before(end); {
			var wcs [1]rdma.WC
			if cq.Poll(wcs[:]) == 1 {
				if wcs[0].Status != rdma.StatusSuccess {
					return false
				}
				if wcs[0].Opcode == rdma.WCRecv {
					answers++
					return true
				}
				continue
			}
			wait, cancel := context.WithTimeout(ctx, time.Second)
			_ = cq.Wait(wait)
			cancel()
		}
		t.Error("a capsule is neither answered nor its connection ended")
		return false
	}
	var s nvme.SQE
	c := s.NewConnect()
	c.SetSQSize(31)
	s.SGL().SetKeyed(nvme.SGLKeyed, base, nvme.ConnectDataLen, stag)
	send(&s, 0, rnd.IntN(2))
	if !answered() {
		return answers
	}
	var on nvme.SQE
	on.NewPropertySet(nvme.PropCC, uint64(nvme.NewConfig(nvme.CommandSetAll, true)))
	on.SGL().SetKeyed(nvme.SGLKeyed, 0, 0, 0)
	send(&on, 0, 0)
	if !answered() {
		return answers
	}
	ops := []nvme.Opcode{nvme.AdminIdentify, nvme.AdminGetLogPage, nvme.AdminSetFeatures, nvme.AdminGetFeatures, nvme.AdminKeepAlive, nvme.OpFabrics, nvme.AdminAbort}
	for range 100 {
		var s nvme.SQE
		s.Init(ops[rnd.IntN(len(ops))], rnd.Uint32N(3))
		s.SetCID(uint16(rnd.Uint32()))
		s.SGL().SetKeyed([]nvme.SGLKind{nvme.SGLKeyed, nvme.SGLKeyed, nvme.SGLInCapsule, nvme.SGLInCapsule, nvme.SGLKeyedInvalidate}[rnd.IntN(5)], base, []uint32{0, 512, 4096, 5121, rnd.Uint32N(1 << 24)}[rnd.IntN(5)], stag)
		send(&s, rnd.IntN(2)*rnd.IntN(4200), rnd.IntN(3))
		if !answered() {
			break
		}
	}
	return answers
}
