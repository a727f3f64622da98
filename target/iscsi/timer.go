package iscsi

import "time"

// onTimer is the login deadline, later the heartbeat of the session, and in the end
// the bound on an orderly close.
func (c *conn) onTimer() {
	switch c.state.get() {
	case connLogin:
		c.close(errLoginTimeout)
	case connFull:
		if c.sess.resting() {
			c.timer.Reset(time.Second)
			return
		}
		if next := c.beat.watch(); next > 0 {
			c.timer.Reset(next)
			if c.state.get() == connLoggedOut {
				c.timer.Reset(hangUpTime) // it logged out while the timer ran
			}
		}
	case connLoggedOut:
		c.close(errHangUp)
	}
}

// afterPositive is time.AfterFunc for a timeout of which negative means none. A
// timer is returned in any case.
func afterPositive(d time.Duration, f func()) *time.Timer {
	if d < 0 {
		t := time.AfterFunc(time.Hour, f)
		t.Stop()
		return t
	}
	return time.AfterFunc(d, f)
}
