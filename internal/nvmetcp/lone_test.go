package nvmetcp_test

import (
	"errors"
	"fmt"
	"net"
	"syscall"
	"testing"
	"time"

	"softiser/internal/nvme"
	. "softiser/internal/nvmetcp"
	"softiser/internal/sockio"
)

// Behind commands that come one by one the receiver waits without having found the socket
// empty, in whichever way it waits. How the stream ends behind the last of them is noticed
// all the same.
func TestLonePDUs(t *testing.T) {
	const n = 50
	reset := func(c *net.TCPConn) error { return errors.Join(c.SetLinger(0), c.Close()) }
	for _, poll := range []time.Duration{sockio.BusyPollAuto, sockio.BusyPollOff, time.Millisecond} {
		for _, tc := range []struct {
			name     string
			together bool // with the last PDU, else when it has been answered
			act      func(*net.TCPConn) error
			want     error
		}{
			{"FIN with the last PDU", true, (*net.TCPConn).CloseWrite, nil},
			{"FIN behind it", false, (*net.TCPConn).CloseWrite, nil},
			{"reset with it", true, reset, syscall.ECONNRESET},
			{"reset behind it", false, reset, syscall.ECONNRESET},
		} {
			t.Run(fmt.Sprintf("%s, busy poll %v", tc.name, poll), func(t *testing.T) {
				h, d := start(t, Config{Socket: sockio.Options{BusyPoll: poll, Crowd: new(sockio.Crowd)}}, ICReq{}, make([]byte, 4096))
				for range n {
					h.write(h.command(nvme.OpRead, 0, nil, 512))
					if _, s := h.response(nil); s != nvme.Success {
						t.Fatal(s)
					}
				}
				h.write(h.command(nvme.OpRead, 0, nil, 512))
				if !tc.together {
					h.response(nil)
				}
				if err := tc.act(h.nc); err != nil {
					t.Fatal(err)
				}
				// A reset that comes together with the command is met by its answer, too.
				if err := d.End(); !errors.Is(err, tc.want) && !(tc.want != nil && errors.Is(err, syscall.EPIPE)) {
					t.Errorf("the connection ended with %v, want %v", err, tc.want)
				}
			})
		}
	}
}
