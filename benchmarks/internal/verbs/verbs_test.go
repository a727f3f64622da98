package verbs

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"softiser/internal/loopback"
	"softiser/rdma"
	"softiser/rdma/rdmatest"
)

func TestEveryTest(t *testing.T) {
	t.Run("iWARP", func(t *testing.T) { everyTest(t, loopback.FreeAddr(t), rdma.ProviderIWARP) })
	t.Run("RoCE", func(t *testing.T) {
		everyTest(t, netip.AddrPortFrom(rdmatest.RoCEAddr(), 7471).String(), rdma.ProviderRoCE)
	})
}

func everyTest(t *testing.T, addr string, p rdma.Provider) {
	ctx, cancel := context.WithCancel(t.Context())
	ready := make(lines, 16)
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, addr, p, 16<<20, ready) }()
	select {
	case <-ready:
	case err := <-done:
		t.Fatal(err)
	}
	for _, o := range []Options{
		{Op: "write", Size: 4096, Depth: 32, CRC: true},
		{Op: "write", Size: 1 << 20, Depth: 4, Region: 16 << 20},
		{Op: "read", Size: 4096, Depth: 32},
		{Op: "send", Size: 4096, Depth: 32, CRC: true},
		{Op: "ping-send", Size: 8, Depth: 4, CRC: true},
		{Op: "ping-send", Size: 8, Depth: 4, AutoPoll: true},
		{Op: "ping-write", Size: 4096, Depth: 4},
	} {
		o.Time, o.Provider = 100*time.Millisecond, p
		c, stop := context.WithTimeout(ctx, 2*time.Minute)
		n := 1
		if o.Op[:4] != "ping" {
			n = 3
		}
		r, err := Run(c, addr, o, n)
		stop()
		if err != nil {
			t.Errorf("%+v: %v", o, err)
			continue
		}
		if r.Messages == 0 || r.Bytes != r.Messages*int64(o.Size) || r.Seconds < 0.05 || (r.P50 == 0) != (o.Op[:4] != "ping") {
			t.Errorf("%+v: %+v", o, r)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// lines passes each write on.
type lines chan string

func (l lines) Write(p []byte) (int, error) { l <- string(p); return len(p), nil }
