package nvmf_test

import (
	"errors"
	"strings"
	"testing"

	. "softiser/initiator/nvmf"
	"softiser/internal/loopback"
)

// A port that speaks NVMe over the other transport alone is recognised, whether it is silent
// or hangs up.
func TestWrongTransport(t *testing.T) {
	addr, _, _ := serve(t, nil)
	for _, asked := range []Transport{TransportTCP, TransportRDMA} {
		other, only := TransportRDMA, loopback.OnlyMPA
		if asked == TransportRDMA {
			other, only = TransportTCP, loopback.NoMPA
		}
		for _, hangUp := range []bool{true, false} {
			t.Run(asked.String()+map[bool]string{true: ", hangs up", false: ", silent"}[hangUp], func(t *testing.T) {
				t.Parallel()
				cfg := config(only(t, addr, hangUp))
				cfg.Transport = asked
				var wrong *WrongTransportError
				_, err := Open(t.Context(), cfg)
				if !errors.As(err, &wrong) || wrong.Asked != asked || (wrong.Err != nil) != hangUp || !strings.Contains(err.Error(), "use nvme+"+other.String()+":// instead of nvme+"+asked.String()) {
					t.Error(err)
				}
				if hangUp {
					if _, err := Discover(t.Context(), cfg); !errors.As(err, &wrong) {
						t.Errorf("Discover: %v", err)
					}
				}
				cfg.Transport = other
				open(t, cfg)
			})
		}
	}
}
