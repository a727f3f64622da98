package iscsitcp

import (
	"errors"
	"io"
	"net"
	"syscall"
	"testing"

	"softiser/internal/iscsi"
)

// Behind PDUs that come one by one the receiver waits without having found the socket
// empty. How the stream ends behind the last of them is noticed all the same.
func TestLonePDUs(t *testing.T) {
	const n = 100
	reset := func(c *net.TCPConn) error { return errors.Join(c.SetLinger(0), c.Close()) }
	for _, tc := range []struct {
		name     string
		together bool // with the last PDU, else when it has been handled
		act      func(*net.TCPConn) error
		want     error
	}{
		{"FIN with the last PDU", true, (*net.TCPConn).CloseWrite, io.EOF},
		{"FIN behind it", false, (*net.TCPConn).CloseWrite, io.EOF},
		{"reset with it", true, reset, syscall.ECONNRESET},
		{"reset behind it", false, reset, syscall.ECONNRESET},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newPeer(t, iscsi.RoleTarget, nil)
			var b iscsi.BHS
			b.NewNopOut().SetITT(1)
			next := func() { r.up.PDU(t, "the PDU").Release() }
			for range n {
				r.send(r.frame(b, nil, nil))
				next()
			}
			r.send(r.frame(b, nil, nil))
			if !tc.together {
				next()
			}
			if err := tc.act(r.nc.(*net.TCPConn)); err != nil {
				t.Fatal(err)
			}
			if tc.together {
				next()
			}
			if err := r.up.End(t); !errors.Is(err, tc.want) {
				t.Errorf("the connection ended with %v, want %v", err, tc.want)
			}
		})
	}
}
