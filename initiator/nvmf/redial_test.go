package nvmf_test

import (
	"testing"

	. "softiser/initiator/nvmf"
	"softiser/internal/await"
	"softiser/internal/loopback"
)

// Nobody answers at the controller's address, not even with a refusal: the attempts to
// connect follow each other for all that, and do not wait for TCP to repeat its SYN.
func TestRedial(t *testing.T) {
	for _, tr := range []Transport{TransportTCP, TransportRDMA} {
		t.Run(tr.String(), func(t *testing.T) {
			addr, _, _ := serve(t, nil)
			p := loopback.NewProxy(t, addr)
			cfg := config(p.Addr)
			cfg.Transport = tr
			n := open(t, cfg)
			p.Deaf(t)
			p.Cut()
			await.True(t, "attempts are given up", func() bool { return n.Stats().LoginFailures >= 3 })
			p.Hear()
			if _, err := n.ReadAt(make([]byte, 4096), 0); err != nil {
				t.Error(err)
			}
		})
	}
}
