package portal

import (
	"net/netip"
	"testing"
)

func TestHere(t *testing.T) {
	for a, want := range map[string]bool{"127.0.0.1": true, "::ffff:127.0.0.1": true, "192.0.2.1": false, "2001:db8::1": false} {
		if got := Here(netip.MustParseAddr(a)); got != want {
			t.Errorf("%s: %v", a, got)
		}
	}
}
