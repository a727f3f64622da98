package nvmf

import (
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
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
