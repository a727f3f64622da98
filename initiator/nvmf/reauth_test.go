package nvmf_test

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"softiser/initiator/blockio"
	. "softiser/initiator/nvmf"
	"softiser/internal/await"
	"softiser/internal/nvme/dhchap"
	"softiser/target"
	targetnvmf "softiser/target/nvmf"
)

func secretOf(t *testing.T, s string) *dhchap.Secret {
	t.Helper()
	k, err := dhchap.ParseSecret(s)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// Both ends prove again and again who they are, on every queue and under I/O; a host whose
// secret does not count any more is put out, and says why.
func TestReauthenticate(t *testing.T) {
	for _, tr := range []Transport{TransportTCP, TransportRDMA} {
		t.Run(tr.String(), func(t *testing.T) {
			rules := []targetnvmf.HostRule{{NQN: hostNQN, Secret: secretOf(t, hostSecret), CtrlSecret: secretOf(t, ctrlSecret)}}
			addr, _, srv := serve(t, func(_ *target.Config, s *targetnvmf.SubsystemConfig) { s.Hosts = rules })
			cfg := config(addr)
			cfg.Transport, cfg.Queues, cfg.QueueDepth = tr, 2, 3
			cfg.Keys = Keys{Secret: hostSecret, CtrlSecret: ctrlSecret}
			cfg.Reauthenticate = time.Millisecond
			cfg.CtrlLossTimeout = 200 * time.Millisecond
			var again atomic.Int32
			unproved := make(chan error, 100)
			cfg.OnEvent = func(e Event) {
				switch e.Kind {
				case EventAuthenticated:
					again.Add(1)
				case EventUnproved:
					unproved <- e.Err
				}
			}
			n := open(t, cfg)
			stop := make(chan struct{})
			wg := load(t, n, 8, stop)
			await.True(t, "it goes on", func() bool { return again.Load() >= 3 })
			close(stop)
			wg.Wait()
			if a := srv.Authentications(); a.Succeeded < 3+3*3 || a.Failed != 0 {
				t.Errorf("%+v", a)
			}
			if s := n.Stats(); s.Losses != 0 {
				t.Errorf("%+v", s)
			}
			rules = []targetnvmf.HostRule{{NQN: hostNQN, Secret: secretOf(t, ctrlSecret)}}
			if err := srv.SetHosts(subNQN, rules, targetnvmf.SecureChannel(0)); err != nil {
				t.Fatal(err)
			}
			if err := <-unproved; !strings.Contains(err.Error(), "authentication of queue") {
				t.Error(err)
			}
			await.True(t, "the association has failed", func() bool { s, _ := n.Association().State(); return s == StateFailed })
			if _, err := n.ReadAt(make([]byte, 4096), 0); !errors.Is(err, blockio.ErrSessionLost) {
				t.Error(err)
			}
			if _, err := n.Association().State(); !strings.Contains(err.Error(), "authentication of queue") {
				t.Error(err)
			}
			if a := srv.Authentications(); a.Failed == 0 {
				t.Errorf("%+v", a)
			}
		})
	}
}
