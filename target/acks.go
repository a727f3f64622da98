package target

import "softiser/internal/iscsi"

// ackWait waits until the initiator has acknowledged what was sent on a connection
// before the StatSN upTo.
type ackWait struct {
	upTo uint32
	f    *fence
}

// afterAcks calls then when the initiator has acknowledged every status that was
// sent on connections of s other than c. Connections do not keep order among each
// other: without this a response of an aborted task could arrive behind the task
// management response (RFC 7143 §4.2.3.3). A NOP-In asks for the
// acknowledgement; a connection that ends is not waited for.
func (s *session) afterAcks(c *conn, then func()) {
	f := newFence(then)
	if s.many {
		for _, o := range s.connList() {
			if o != c && o.state.get() == connFull && o.awaitAck(f) {
				o.sendPing()
			}
		}
	}
	f.release()
}

// awaitAck makes f wait for the acknowledgement of what has been sent on c. It
// reports false when c has ended.
func (c *conn) awaitAck(f *fence) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state.get() == connClosed {
		return false
	}
	f.left.Add(1)
	c.acks = append(c.acks, ackWait{c.statSN.Load(), f})
	c.acksDue.Store(true)
	return true
}

// acknowledged takes an ExpStatSN while somebody waits for one. gone says that the
// connection has ended, and none will come.
func (c *conn) acknowledged(exp uint32, gone bool) {
	c.mu.Lock()
	var over []*fence
	rest := c.acks[:0]
	for _, w := range c.acks {
		if gone || iscsi.SerialLessEq(w.upTo, exp) {
			over = append(over, w.f)
		} else {
			rest = append(rest, w)
		}
	}
	c.acks = rest
	c.acksDue.Store(len(rest) > 0)
	c.mu.Unlock()
	for _, f := range over {
		f.release()
	}
}
