package tcpref

import (
	"context"
	"testing"
	"time"

	"softiser/internal/await"
	"softiser/internal/loopback"
)

// Datagrams come back, and what cannot be a datagram is refused.
func TestUDP(t *testing.T) {
	addr := loopback.FreeAddr(t) // of TCP: nobody else is given it
	var err error
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- ServeUDP(ctx, addr) }()
	var r *Result
	await.True(t, "it is there", func() bool { // before, nobody answers, and the port is closed
		r, err = RunUDP(ctx, addr, Options{Size: 100, Time: 10 * time.Millisecond})
		return err == nil
	})
	if r.Messages == 0 || r.Bytes != 100*r.Messages || r.P50 == 0 {
		t.Errorf("%+v, %v", r, err)
	}
	if _, err := RunUDP(ctx, addr, Options{Size: maxDatagram + 1}); err == nil {
		t.Error("a datagram that is too long")
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
