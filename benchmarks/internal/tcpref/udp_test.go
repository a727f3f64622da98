package tcpref

import (
	"context"
	"net"
	"testing"
	"time"
)

// Datagrams come back, and what cannot be a datagram is refused.
func TestUDP(t *testing.T) {
	c, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := c.LocalAddr().String()
	c.Close()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- ServeUDP(ctx, addr) }()
	var r *Result
	for range 100 { // until it is there: before, nobody answers, and the port is closed
		if r, err = RunUDP(ctx, addr, Options{Size: 100, Time: 10 * time.Millisecond}); err == nil {
			break
		}
		time.Sleep(10 * time.Millisecond) // it is being started
	}
	if err != nil || r.Messages == 0 || r.Bytes != 100*r.Messages || r.P50 == 0 {
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
