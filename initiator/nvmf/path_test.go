package nvmf

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"softiser/internal/nvme"
)

// A lost association is over when its controller must have ended it, or when it has been
// made again.
func TestFence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &Association{state: StateDown, err: errLost, ctrl: &controller{holds: 5 * time.Second}, since: time.Now()}
		n := &Namespace{a: a}
		fenced := func() bool { return n.Fence(context.Background(), nil) == nil }
		// Our own target looks twice, each time a second late: see TestSilentHostEnds of target/nvmf.
		time.Sleep(2*5*time.Second + 2*nvme.KeepAliveSlack)
		if fenced() {
			t.Error("fenced before the controller must have ended the association")
		}
		time.Sleep(900 * time.Millisecond)
		if fenced() {
			t.Error("fenced without a second for its clock")
		}
		time.Sleep(200 * time.Millisecond)
		if !fenced() {
			t.Error("not fenced after that")
		}
		a.ctrl.holds = 0
		if time.Sleep(time.Hour); fenced() {
			t.Error("fenced without a keep alive")
		}
		if a.state = StateLive; !fenced() {
			t.Error("not fenced by a new association")
		}
	})
}

// A controller may take as long to shut down as it says, within bounds.
func TestShutdownTime(t *testing.T) {
	for says, want := range map[time.Duration]time.Duration{0: 5 * time.Second, time.Second: 5 * time.Second, 10 * time.Second: 10 * time.Second, time.Hour: time.Minute} {
		c := &controller{ident: &nvme.Controller{RTD3E: uint32(says / time.Microsecond)}}
		if got := c.shutdownTime(); got != want {
			t.Errorf("%v is said, %v are waited", says, got)
		}
	}
}
