package tcpref

import (
	"context"
	"testing"
	"time"

	"softiser/internal/loopback"
)

func TestEveryTest(t *testing.T) {
	addr := loopback.FreeAddr(t)
	ctx, cancel := context.WithCancel(t.Context())
	ready := make(lines, 16)
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, addr, "", 1<<20, ready) }()
	select {
	case <-ready:
	case err := <-done:
		t.Fatal(err)
	}
	for _, o := range []Options{{Op: "ping", Size: 8}, {Op: "spin", Size: 4096}, {Op: "paced", Size: 100_000, Rate: 50_000_000, Congestion: "reno"}} {
		o.Time = 100 * time.Millisecond
		r, err := Run(ctx, addr, o)
		if err != nil {
			t.Errorf("%+v: %v", o, err)
			continue
		}
		if r.Messages == 0 || r.Bytes == 0 || (o.Op == "paced") != (r.P50 == 0) {
			t.Errorf("%+v: %+v", o, r)
		}
	}
	if _, err := Run(ctx, addr, Options{Op: "other"}); err == nil {
		t.Error("an unknown test was accepted")
	}
	if _, err := Run(ctx, addr, Options{Op: "ping", Size: 8, Congestion: "no such"}); err == nil {
		t.Error("an unknown congestion control was accepted")
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// lines passes each write on.
type lines chan string

func (l lines) Write(p []byte) (int, error) { l <- string(p); return len(p), nil }
