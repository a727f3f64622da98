package nvmetcp_test

import (
	"fmt"
	"testing"

	"softiser/internal/loopback"
	"softiser/internal/nvme"
	"softiser/internal/nvme/queuetest"
	. "softiser/internal/nvmetcp"
)

// Both sides pass the suite of the seams, in the ways that they can agree on.
func TestConformance(t *testing.T) {
	for _, cfg := range []HostConfig{{}, {Digests: DigestHeader | DigestData, HPDA: 3}, {Digests: DigestHeader, HPDA: 31}, {Digests: DigestData}} {
		t.Run(fmt.Sprintf("%s %d", cfg.Digests, cfg.HPDA), func(t *testing.T) {
			queuetest.Run(t, func(t testing.TB, inCapsule int, begin func(queuetest.Controller)) queuetest.Host {
				client, server := loopback.Pair(t)
				c, err := NewController(server, Config{})
				if err != nil {
					t.Fatal(err)
				}
				begin(c)
				h, err := NewHost(t.Context(), client, cfg, nvme.HostQueue{ID: 1, Entries: queuetest.Entries, InCapsule: inCapsule})
				if err != nil {
					t.Fatal(err)
				}
				return h
			})
		})
	}
}
