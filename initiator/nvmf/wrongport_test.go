package nvmf_test

import (
	"bufio"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"

	. "softiser/initiator/nvmf"
)

// onlyOne is a port in front of the target at addr that speaks a single transport; of what
// begins otherwise it waits for the rest, or hangs up.
func onlyOne(t *testing.T, addr string, speaks Transport, hangUp bool) string {
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
				in := bufio.NewReader(c)
				first, err := in.Peek(4)
				if err != nil {
					return
				}
				if (string(first) == "MPA ") != (speaks == TransportRDMA) {
					if !hangUp {
						_, _ = io.Copy(io.Discard, in)
					}
					return
				}
				to, err := net.Dial("tcp", addr)
				if err != nil {
					t.Error(err)
					return
				}
				defer to.Close()
				wg.Go(func() {
					_, _ = io.Copy(c, to)
					c.Close()
				})
				_, _ = io.Copy(to, in)
			})
		}
	})
	return l.Addr().String()
}

// A port that speaks NVMe over the other transport alone is recognised, whether it is silent
// or hangs up.
func TestWrongTransport(t *testing.T) {
	addr, _, _ := serve(t, nil)
	for _, asked := range []Transport{TransportTCP, TransportRDMA} {
		other := TransportTCP + TransportRDMA - asked
		for _, hangUp := range []bool{true, false} {
			t.Run(asked.String()+map[bool]string{true: ", hangs up", false: ", silent"}[hangUp], func(t *testing.T) {
				t.Parallel()
				cfg := config(onlyOne(t, addr, other, hangUp))
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
