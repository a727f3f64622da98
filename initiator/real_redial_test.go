package initiator_test

import (
	"testing"

	"softiser/initiator"
	"softiser/internal/await"
	"softiser/internal/loopback"
)

// Nobody answers at the target's address, not even with a refusal: the attempts to connect
// follow each other for all that, and do not wait for TCP to repeat its SYN.
func TestRedial(t *testing.T) {
	both(t, func(t *testing.T, tr initiator.Transport) {
		s := serve(t, 1<<20, nil)
		p := loopback.NewProxy(t, s.addr)
		cfg := s.config(tr)
		cfg.Address = p.Addr
		l := openLUN(t, cfg)
		p.Deaf(t)
		p.Cut()
		await.True(t, "attempts are given up", func() bool { return l.Stats().LoginFailures >= 3 })
		p.Hear()
		if _, err := l.ReadAt(make([]byte, 512), 0); err != nil {
			t.Error(err)
		}
	})
}
