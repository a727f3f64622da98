package rdma_test

import (
	"errors"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"softiser/rdma"
	"softiser/rdma/rdmatest"
)

const loneMsgs = 100

// Messages that come one by one cost one call each; the receiver then waits for the
// next one without having found the socket empty, and must still notice how the
// stream ends behind it.
func TestLoneMessages(t *testing.T) {
	for name, poll := range map[string]time.Duration{"auto": rdma.BusyPollAuto, "waiting": rdma.BusyPollOff} {
		t.Run(name, func(t *testing.T) { loneMessages(t, poll) })
	}
}

func loneMessages(t *testing.T, poll time.Duration) {
	reset := func(c *net.TCPConn) error { return errors.Join(c.SetLinger(0), c.Close()) }
	for _, tc := range []struct {
		name     string
		together bool // with the last message, else when the receiver has handled it
		act      func(*net.TCPConn) error
		want     error
	}{
		{"FIN with the last message", true, (*net.TCPConn).CloseWrite, io.EOF},
		{"FIN behind it", false, (*net.TCPConn).CloseWrite, io.EOF},
		{"closed with it", true, (*net.TCPConn).Close, io.EOF},
		{"closed behind it", false, (*net.TCPConn).Close, io.EOF},
		{"reset with it", true, reset, syscall.ECONNRESET},
		{"reset behind it", false, reset, syscall.ECONNRESET},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p, e := rawToServer(t, &rdmatest.Options{Server: rdma.ConnParams{BusyPoll: poll}, Prepare: func(_, b *rdmatest.End) {
				for i := range loneMsgs + 1 {
					b.Recv(t, uint64(i+1), make([]byte, 16))
				}
			}}, nil)
			for i := range uint32(loneMsgs) {
				p.send(sendMsg(i+1, []byte("one")))
				e.Want(t, uint64(i+1), rdma.WCRecv, rdma.StatusSuccess)
			}
			// An event may come late, and cost a call that finds nothing.
			if n := e.QP.Stats().RecvCalls; n > loneMsgs*3/2 {
				t.Errorf("%d calls for %d messages, one after the other", n, loneMsgs)
			}
			p.send(sendMsg(loneMsgs+1, []byte("last")))
			if !tc.together {
				e.Want(t, loneMsgs+1, rdma.WCRecv, rdma.StatusSuccess)
			}
			if err := tc.act(p.nc); err != nil {
				t.Fatal(err)
			}
			if tc.together {
				e.Want(t, loneMsgs+1, rdma.WCRecv, rdma.StatusSuccess)
			}
			if err := e.WaitDone(t); !errors.Is(err, tc.want) {
				t.Errorf("the connection ended with %v, want %v", err, tc.want)
			}
		})
	}
}
