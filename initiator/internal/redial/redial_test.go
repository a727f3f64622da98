package redial

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"softiser/internal/loopback"
)

const ms = time.Millisecond

// How long TCP may take: little at first, more and more for a peer that stays away, and
// more for one that is far.
func TestLimit(t *testing.T) {
	for _, c := range []struct {
		down, quickest, want time.Duration
		addr                 string
	}{
		{0, ms, 0, "192.0.2.1:3260"},
		{ms, ms, 200 * ms, "192.0.2.1:3260"},
		{ms, 0, 200 * ms, "[2001:db8::1]:3260"},
		{ms, 300 * ms, 1200 * ms, "192.0.2.1:3260"},
		{5 * time.Second, ms, 200 * ms, "192.0.2.1:3260"},
		{12 * time.Second, ms, 7 * time.Second, "192.0.2.1:3260"},
		{ms, ms, 0, "target.example:3260"},
	} {
		p := Pace{down: c.down, quickest: c.quickest}
		if got := p.Limit(c.addr); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

// The pause is short while TCP finds nobody, for a while; what a peer says is not asked for
// more often than its caller would.
func TestNext(t *testing.T) {
	refused := fmt.Errorf("no RDMA connection: %w", &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED})
	for _, c := range []struct {
		down time.Duration
		err  error
		wait time.Duration
		want time.Duration
	}{
		{ms, refused, 100 * ms, 100 * ms},
		{ms, refused, 800 * ms, 200 * ms},
		{4999 * ms, refused, 800 * ms, 200 * ms},
		{5 * time.Second, refused, 800 * ms, 800 * ms},
		{time.Minute, &net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded}, 5 * time.Second, breath},
		{ms, &net.OpError{Op: "read", Err: syscall.ECONNRESET}, 800 * ms, 800 * ms},
		{ms, errors.New("login refused"), 800 * ms, 800 * ms},
	} {
		p := Pace{}
		p.Attempt(c.down)
		if got := p.Next(c.err, c.wait); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

// An attempt into silence is given up, the first connection is not; the handshake of one that
// is answered is remembered.
func TestDial(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	p := loopback.NewProxy(t, ln.Addr().String())
	var pace Pace
	nc, err := pace.Dial(t.Context(), net.Dialer{}, p.Addr)
	if err != nil || pace.quickest <= 0 {
		t.Fatal(err, pace.quickest)
	}
	nc.Close()
	pace.quickest = ms
	p.Deaf(t)
	pace.Attempt(10 * ms)
	begin := time.Now()
	var ne net.Error
	if _, err := pace.Dial(t.Context(), net.Dialer{Timeout: time.Hour}, p.Addr); !errors.As(err, &ne) || !ne.Timeout() || time.Since(begin) < quick {
		t.Errorf("%v after %v", err, time.Since(begin))
	} else if pace.Next(err, time.Second) != breath {
		t.Error("what ran into silence is not tried again soon")
	}
}
