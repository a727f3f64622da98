package initiator_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"softiser/initiator"
	"softiser/internal/loopback"
)

// A port that speaks only iSCSI, and waits for the rest of what it takes for a
// long PDU, is recognised; so is one that breaks off.
func TestWrongPort(t *testing.T) {
	t.Parallel() // it waits by the clock
	for _, hangUp := range []bool{false, true} {
		s := serve(t, 1<<20, nil)
		cfg := s.config(initiator.TransportISER)
		cfg.Address = loopback.NoMPA(t, s.addr, hangUp)
		_, err := initiator.Dial(context.Background(), cfg)
		var wrong *initiator.WrongProtocolError
		if !errors.As(err, &wrong) || wrong.Address != cfg.Address || !strings.Contains(err.Error(), "use iscsi://") {
			t.Errorf("hang up %v: Dial: %v", hangUp, err)
		}
		if _, err := initiator.Discover(context.Background(), cfg); !errors.As(err, &wrong) {
			t.Errorf("hang up %v: Discover: %v", hangUp, err)
		}
		// The port is not at fault when it is addressed rightly.
		cfg.Transport = initiator.TransportTCP
		if ts, err := initiator.Discover(context.Background(), cfg); err != nil || len(ts) != 1 {
			t.Errorf("hang up %v: over TCP: %v, %v", hangUp, ts, err)
		}
	}
}
