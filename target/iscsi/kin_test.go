package iscsi

import (
	"fmt"
	"testing"
)

// A login looks at the sessions of its own name only, by one system call however many there
// are, and waits for those that their initiator has closed.
func TestLoginsUnderOneName(t *testing.T) {
	const many, others = 60, 20
	s := serve(t, func(c *serverConfig, _ *Target) {
		c.Limits.Sessions, c.Limits.SessionsPerAddress = 2*(many+others), many+others+1
	})
	login := func(name string, port int) *rawInitiator {
		r := s.dial()
		r.name, r.isid[5] = name, byte(port)
		r.mustLogin(testIQN)
		return r
	}
	var all []*rawInitiator
	for i := range many {
		all = append(all, login("iqn.2026-11.test:many", i))
	}
	for i := range others {
		all = append(all, login(fmt.Sprintf("iqn.2026-11.test:other%d", i), 0))
	}
	for i, want := range map[int]int{0: many, many: 1} {
		x := s.sessionByTSIH(all[i].tsih)
		s.mu.Lock()
		kin := s.sessions.kin.of(x)
		s.mu.Unlock()
		over, closed, calls := endsOf(kin)
		if len(kin) != want || calls != 1 || len(over)+len(closed) != 0 {
			t.Errorf("a login as %s looks at %d sessions, not %d, by %d calls; %d are over, %d connections closed", all[i].name, len(kin), want, calls, len(over), len(closed))
		}
	}
	for i := 0; i < many; i += 7 {
		all[i].nc.Close()
	}
	login("iqn.2026-11.test:many", many)
	for i := 0; i < many; i++ {
		if there := s.sessionByTSIH(all[i].tsih) != nil; there != (i%7 != 0) {
			t.Errorf("session %d: there is %v", i, there)
		}
	}
	for _, r := range all {
		r.nc.Close()
	}
	eventually(t, "the table is empty but for the last one", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.sessions.kin) == 1 && len(s.sessions.tsihs) == 1
	})
}
