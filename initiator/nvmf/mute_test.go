package nvmf_test

import (
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"softiser/initiator/blockio"
	. "softiser/initiator/nvmf"
	"softiser/internal/await"
	"softiser/internal/loopback"
	"softiser/internal/nvme"
)

// A controller that is mute while its port takes connections has been replaced: the
// association is made again, long before its time-outs.
func TestMuteControllerIsReplaced(t *testing.T) {
	for _, tr := range []Transport{TransportTCP, TransportRDMA} {
		for _, kato := range []time.Duration{time.Minute, -1} {
			t.Run(tr.String()+map[bool]string{true: ", no keep alive"}[kato < 0], func(t *testing.T) {
				t.Parallel()
				addr, _, _ := serve(t, nil)
				p := loopback.NewProxy(t, addr)
				cfg := config(p.Addr)
				cfg.Transport, cfg.Queues, cfg.KeepAlive = tr, 2, kato
				var mu sync.Mutex
				var why []error
				cfg.OnEvent = func(e Event) {
					if e.Kind == EventLost {
						mu.Lock()
						why = append(why, e.Err)
						mu.Unlock()
					}
				}
				n := open(t, cfg)
				stop := make(chan struct{})
				wg := load(t, n, 4, stop)
				await.True(t, "it goes on", func() bool { return n.Stats().Completed > 50 })
				p.Mute()
				begin := time.Now()
				await.True(t, "the association is made again", func() bool { return n.Stats().Logins == 2 })
				t.Logf("it took %v", time.Since(begin))
				before := n.Stats().Completed
				await.True(t, "it goes on", func() bool { return n.Stats().Completed > before+50 })
				close(stop)
				wg.Wait()
				mu.Lock()
				defer mu.Unlock()
				if len(why) != 1 || !strings.Contains(why[0].Error(), "mute") {
					t.Errorf("lost: %v", why)
				}
			})
		}
	}
}

// A controller whose storage stalls, and that answers Keep Alive, keeps its association, and
// nobody else connects to it.
func TestStalledControllerKeepsAssociation(t *testing.T) {
	f := newFake(t)
	cfg := f.config()
	cfg.SilencePing, cfg.SilenceProbe = 50*time.Millisecond, 1500*time.Millisecond
	n := open(t, cfg)
	f.set(func(q *fakeQueue, k *nvme.Command, e *nvme.CQE) bool { return q.id == 0 })
	done := make(chan error, 1)
	n.Submit(&blockio.Request{Op: blockio.OpRead, Buf: make([]byte, 4096), Done: func(r *blockio.Request) { done <- r.Err }})
	await.True(t, "it goes on", func() bool { return f.count("Read") == 1 })
	stalled := time.Now()
	await.True(t, "it is silent for longer than a probe waits", func() bool {
		return time.Since(stalled) > cfg.SilenceProbe+time.Second/4 && n.Stats().Pings > 1
	})
	connects := f.count("Connect")
	f.set(nil)
	await.True(t, "the read is answered", func() bool { return f.release(1, nvme.OpRead, nvme.InternalError|nvme.DoNotRetry, 0) == 1 })
	var se *StatusError
	if err := <-done; !errors.As(err, &se) {
		t.Error(err)
	}
	if s := n.Stats(); s.Losses != 0 || connects != 2 {
		t.Errorf("%d losses, %d Connects", s.Losses, connects)
	}
}

// The Connect after a loss is not answered, as by a host that is stopped, while the port takes
// connections: the attempt is given up for a fresh one, long before its time-out.
func TestStuckConnectIsGivenUp(t *testing.T) {
	f := newFake(t)
	cfg := f.config()
	cfg.SilencePing, cfg.SilenceProbe, cfg.ConnectTimeout = 50*time.Millisecond, 200*time.Millisecond, time.Hour
	n := open(t, cfg)
	var stuck atomic.Int32
	f.set(func(_ *fakeQueue, k *nvme.Command, _ *nvme.CQE) bool {
		connect := k.SQE.Opcode() == nvme.OpFabrics && k.SQE.FabricsType() == nvme.FabricsConnect
		return !connect || stuck.Add(1) > 1
	})
	f.drop()
	await.True(t, "the association is made again", func() bool { return n.Stats().Logins >= 2 })
	if s := n.Stats(); stuck.Load() < 2 || s.LoginFailures == 0 {
		t.Errorf("%d Connects, %+v", stuck.Load(), s)
	}
}

// Times that cannot be are refused.
func TestSilenceTimes(t *testing.T) {
	cfg := config("127.0.0.1:1")
	cfg.SilencePing, cfg.SilenceProbe = 2*time.Second, time.Second
	var ce *ConfigError
	if _, err := Open(t.Context(), cfg); !errors.As(err, &ce) {
		t.Error(err)
	}
}
