package initiator_test

import (
	"strings"
	"sync"
	"testing"
	"time"

	"softiser/initiator"
)

// An administrator ends the session at the target, several times while it is in use:
// the initiator hears why, waits as long as it is told to, and goes on.
func TestSessionKilledAtTheTarget(t *testing.T) {
	t.Parallel() // it waits by the clock
	everywhere(t, func(t *testing.T, tr initiator.Transport) {
		s := serveOver(t, tr, 8<<20, nil)
		var mu sync.Mutex
		var told []string
		cfg := s.config(tr)
		cfg.Time2Wait = 1
		cfg.OnEvent = func(e initiator.Event) {
			if e.Kind == initiator.EventAsync {
				mu.Lock()
				told = append(told, e.Detail)
				mu.Unlock()
			}
		}
		l := openLUN(t, cfg)
		data := make([]byte, 64<<10)
		for i := range 2 {
			for j := range data {
				data[j] = byte(i + j)
			}
			if _, err := l.WriteAt(data, 0); err != nil {
				t.Fatal(err)
			}
			begin := time.Now()
			if err := s.KillSession(s.Status().Sessions[0].TSIH); err != nil {
				t.Fatal(err)
			}
			got := make([]byte, len(data))
			if _, err := l.ReadAt(got, 0); err != nil {
				t.Fatal(err)
			}
			if string(got) != string(data) {
				t.Fatal("the data has changed")
			}
			if took := time.Since(begin); took < time.Second {
				t.Errorf("back after %v, the target said 1 s", took)
			}
		}
		mu.Lock()
		defer mu.Unlock()
		if len(told) != 2 || !strings.Contains(told[0], "the target drops the session (Time2Wait 1 s, Time2Retain 0 s)") {
			t.Errorf("told: %q", told)
		}
		if st := l.Stats(); st.Logins != 3 {
			t.Errorf("%d logins", st.Logins)
		}
	})
}
