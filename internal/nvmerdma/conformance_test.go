package nvmerdma

import (
	"context"
	"testing"

	"softiser/internal/loopback"
	"softiser/internal/nvme"
	"softiser/internal/nvme/queuetest"
)

// Both sides pass the suite of the seams.
func TestConformance(t *testing.T) {
	hosts, controllers := device(t, Config{Host: true}), device(t, Config{})
	queuetest.Run(t, func(t testing.TB, inCapsule int, begin func(queuetest.Controller)) queuetest.Host {
		client, server := loopback.Pair(t)
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		done := make(chan error, 1)
		go func() {
			c, err := controllers.Accept(ctx, server, AcceptConfig{Queues: 4, Entries: queuetest.Entries})
			if err == nil {
				begin(c)
			}
			done <- err
		}()
		h, err := NewHost(ctx, client, HostConfig{Device: hosts}, nvme.HostQueue{ID: 1, Entries: queuetest.Entries, InCapsule: inCapsule})
		if err2 := <-done; err != nil || err2 != nil {
			t.Fatal(err, err2)
		}
		t.Cleanup(func() { <-h.Ended() }) // also of one that was never started
		return h
	})
}
