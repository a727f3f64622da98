package initiator_test

import (
	"bytes"
	"strings"
	"sync"
	"testing"
	"time"

	"softiser/initiator"
	"softiser/internal/await"
	"softiser/internal/loopback"
)

// A target that is mute while its portal takes connections has been replaced: the session is
// reinstated, long before its pings are given up, and nothing is lost.
func TestMuteTargetReal(t *testing.T) {
	for _, tr := range []initiator.Transport{initiator.TransportISER, initiator.TransportTCP} {
		t.Run(tr.String(), func(t *testing.T) {
			t.Parallel()
			s := serve(t, 1<<20, nil)
			p := loopback.NewProxy(t, s.addr)
			cfg := s.config(tr)
			cfg.Address, cfg.NopInterval = p.Addr, time.Minute
			var mu sync.Mutex
			var why []error
			cfg.OnEvent = func(e initiator.Event) {
				if e.Kind == initiator.EventLost {
					mu.Lock()
					why = append(why, e.Err)
					mu.Unlock()
				}
			}
			l := openLUN(t, cfg)
			want := bytes.Repeat([]byte("written while mute  "), 1<<10)[:16<<10]
			if _, err := l.WriteAt(want, 0); err != nil {
				t.Fatal(err)
			}
			p.Mute()
			begin := time.Now()
			if _, err := l.WriteAt(want, 64<<10); err != nil {
				t.Fatal(err)
			}
			t.Logf("it took %v", time.Since(begin))
			got := make([]byte, len(want))
			if _, err := l.ReadAt(got, 64<<10); err != nil || !bytes.Equal(got, want) {
				t.Errorf("%v, or other data", err)
			}
			await.True(t, "the loss is told", func() bool { mu.Lock(); defer mu.Unlock(); return len(why) > 0 })
			mu.Lock()
			defer mu.Unlock()
			if len(why) != 1 || !strings.Contains(why[0].Error(), "mute") {
				t.Errorf("lost: %v", why)
			}
		})
	}
}
