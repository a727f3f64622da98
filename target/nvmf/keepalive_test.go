package nvmf

import (
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"softiser/internal/nvme"
)

// A keep alive timer that has fired when another one is set in its place is not a second one:
// the two would ask shortly after each other, and the later one hear of no command.
func TestOneKeepAliveTimer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &controller{fe: &Frontend{}, sub: &subsystem{}, zlog: zap.NewNop(), seat: &seat{at: &share{of: &shares{}}}}
		c.alive.c = c
		c.mu.Lock()
		c.alive.setLocked(time.Second)
		c.mu.Unlock()
		c.alive.seen.Store(true)
		c.mu.Lock()
		time.Sleep(time.Second + keepAliveSlack) // the timer fires now, and finds the lock taken
		c.alive.setLocked(time.Second)
		c.mu.Unlock()
		synctest.Wait()
		c.alive.seen.Store(true)
		time.Sleep(time.Second + keepAliveSlack + time.Millisecond)
		synctest.Wait()
		c.mu.Lock()
		over := c.over
		c.mu.Unlock()
		if over {
			t.Error("a host that has been heard of was taken for silent")
		}
		c.end(errGone)
	})
}

// A host that is silent is gone within twice its keep alive timeout and slack, which is what our
// own host waits for, and more (TestFence of initiator/nvmf).
func TestSilentHostEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const timeout = 5 * time.Second
		c := &controller{fe: new(Frontend), sub: &subsystem{}, zlog: zap.NewNop(), seat: &seat{at: &share{of: &shares{}}}}
		c.alive.c = c
		c.mu.Lock()
		c.alive.setLocked(timeout)
		c.mu.Unlock()
		time.Sleep(time.Millisecond)
		c.alive.seen.Store(true) // the last command, shortly after a look
		over := func() bool {
			synctest.Wait()
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.over
		}
		if time.Sleep(timeout + time.Second); over() {
			t.Error("ended within the timeout and a second")
		}
		if time.Sleep(timeout + 2*nvme.KeepAliveSlack - time.Second); !over() {
			t.Error("not ended within twice the timeout and slack")
		}
	})
}
