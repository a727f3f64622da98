package initiator

import (
	"context"
	"errors"
	"testing"

	"softiser/internal/iscsi"
)

// The port of Config.Address may be left out.
func TestAddressWithoutPort(t *testing.T) {
	for _, c := range []struct{ given, dialled string }{
		{"192.0.2.1", "192.0.2.1:3260"},
		{"192.0.2.1:", "192.0.2.1:3260"},
		{"192.0.2.1:860", "192.0.2.1:860"},
		{"target.example", "target.example:3260"},
		{"[2001:db8::1]", "[2001:db8::1]:3260"},
		{"[2001:db8::1]:860", "[2001:db8::1]:860"},
		{"2001:db8::1", ""},
		{"[2001:db8::1", ""},
		{":", ""},
	} {
		var dialled []string
		stop := errors.New("far enough")
		cfg := Config{Address: c.given, TargetName: "iqn.2026-11.softiser:fake", InitiatorName: "iqn.2026-11.softiser:test"}
		cfg.dial = func(_ context.Context, _ *Config, addr string) (iscsi.Datamover, error) {
			dialled = append(dialled, addr)
			return nil, stop
		}
		_, err1 := Dial(context.Background(), cfg)
		_, err2 := Discover(context.Background(), cfg)
		for _, err := range []error{err1, err2} {
			var wrong *ConfigError
			if c.dialled != "" && !errors.Is(err, stop) || c.dialled == "" && !errors.As(err, &wrong) {
				t.Errorf("%q: %v", c.given, err)
			}
		}
		for _, a := range dialled {
			if a != c.dialled {
				t.Errorf("%q: dialled %q, want %q", c.given, a, c.dialled)
			}
		}
		if c.dialled != "" && len(dialled) != 2 {
			t.Errorf("%q: dialled %q", c.given, dialled)
		}
	}
}
