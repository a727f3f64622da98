package nvmf

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// A lost association is over when its controller must have ended it, or when it has been
// made again.
func TestFence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &Association{state: StateDown, err: errLost, ctrl: &controller{holds: 5 * time.Second}, since: time.Now()}
		n := &Namespace{a: a}
		fenced := func() bool { return n.Fence(context.Background(), nil) == nil }
		time.Sleep(10900 * time.Millisecond)
		if fenced() {
			t.Error("fenced within twice the keep alive timeout and a second")
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
