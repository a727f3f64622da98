package target

import "testing"

// The limits leave descriptors to what is no connection.
func TestBudget(t *testing.T) {
	l := Limits{Sessions: 4096, PendingLogins: 256}
	for _, c := range []struct {
		limit, used       uint64
		sessions, pending int
	}{
		{1 << 20, 20, 4096, 256},
		{8192, 20, 4096, 256},
		{4096, 20, 4096 - 20 - 256 - 256, 256},
		{1024, 24, (1024 - 24 - 64) * 3 / 4, (1024 - 24 - 64) / 4},
		{256, 200, 18, 6},
		{64, 60, 1, 1},
		{^uint64(0), 20, 4096, 256},
	} {
		s, p := descriptorBudget(c.limit, c.used, l)
		if s != c.sessions || p != c.pending {
			t.Errorf("%d descriptors, %d used: %d sessions and %d pending logins, want %d and %d", c.limit, c.used, s, p, c.sessions, c.pending)
		}
		if uint64(s+p)+c.used > c.limit && c.limit > 100 {
			t.Errorf("%d descriptors, %d used: %d are given out", c.limit, c.used, s+p)
		}
	}
}
