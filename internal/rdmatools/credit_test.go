package rdmatools

import (
	"context"
	"testing"
	"time"

	"softiser/rdma"
	"softiser/rdma/rdmatest"
)

// Over RoCE perftest's send-bw has no credits: its client names no memory for them, and
// refuses what is written to it; its server writes none, and the client must not wait. Found
// against the original.
func TestPerftestNoCreditsOverRoCE(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	s, c := rdmatest.RoCEAddr(), rdmatest.RoCEAddr()
	port := freePort(t)
	done := make(chan error, 1)
	go func() {
		_, err := tool(ctx, "send-bw", "--provider", "roce", "--bind_source_ip", s.String(), "-p", port, "-n", "40", "-s", "8", "-r", "6")
		done <- err
	}()
	dev, err := rdma.Open(&rdma.DeviceConfig{Provider: rdma.ProviderRoCE})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	ctl, err := newPTControl(dev, true)
	if err != nil {
		t.Fatal(err)
	}
	defer ctl.close()
	dial := func(qp *rdma.QP) error {
		_, err := rdma.Dial(ctx, "roce", s.String()+":"+port, qp, &rdma.ConnParams{RoCE: rdma.RoCEParams{LocalAddr: c}})
		return err
	}
	if err := served(t, func() error { return dial(ctl.qp) }); err != nil {
		t.Fatal(err)
	}
	cycle, err := ctl.greet(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ctl.dest(ctx, 1, &ptDest{}); err != nil {
		t.Fatal(err)
	}
	p := &perf{transport: transport{provider: "roce"}, kind: perfKind{"send-bw", "", rdma.OpSend, false}, size: 8, iters: 40, depth: 40, rxDepth: 6, reads: 1}
	e, err := newPTTest(dev, p, cycle, true)
	if err != nil {
		t.Fatal(err)
	}
	defer e.close()
	e.mine.RKey, e.mine.VAddr = 0, 0
	if err := dial(e.qp); err != nil {
		t.Fatal(err)
	}
	if err := e.exchange(ctx, ctl); err != nil {
		t.Fatalf("%v; the server: %v", err, <-done)
	}
	if err := e.stream(ctx); err != nil {
		t.Fatalf("%v; the server: %v", err, <-done)
	}
	if _, err := ctl.dest(ctx, 1, &e.mine); err != nil {
		t.Fatal(err)
	}
	e.disconnect()
	ctl.disconnect()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
