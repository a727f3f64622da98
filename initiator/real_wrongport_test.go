package initiator_test

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"

	"softiser/initiator"
)

// A port that speaks only iSCSI, and waits for the rest of what it takes for a
// long PDU, is recognised; so is one that breaks off.
func TestWrongPort(t *testing.T) {
	t.Parallel() // it waits by the clock
	for _, hangUp := range []bool{false, true} {
		s := serve(t, 1<<20, nil)
		cfg := s.config(initiator.TransportISER)
		cfg.Address = onlyISCSI(t, s.addr, hangUp)
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

// onlyISCSI is a port in front of the target at addr that does not know MPA: it
// waits for the end of such a PDU, or hangs up.
func onlyISCSI(t *testing.T, addr string, hangUp bool) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	t.Cleanup(func() { l.Close(); wg.Wait() })
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				first := make([]byte, 4)
				if _, err := io.ReadFull(c, first); err != nil {
					return
				}
				if string(first) == "MPA " {
					if !hangUp {
						_, _ = io.Copy(io.Discard, c)
					}
					return
				}
				to, err := net.Dial("tcp", addr)
				if err != nil {
					t.Error(err)
					return
				}
				defer to.Close()
				if _, err := to.Write(first); err != nil {
					return
				}
				wg.Go(func() {
					_, _ = io.Copy(c, to)
					c.Close()
				})
				_, _ = io.Copy(to, c)
			})
		}
	})
	return l.Addr().String()
}
