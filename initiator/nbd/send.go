package nbd

import (
	"errors"
	"os"
)

// Replies leave in batches: whoever finds replies queued and nobody sending
// becomes the sender and takes all there are into one writev. On a session's
// receive goroutine that happens only when the last request under way has been
// answered (nothing more can join the batch) and never blocks: what the socket
// does not take is left to the send goroutine. Otherwise the send goroutine is
// woken; by the time it runs, the rest of the batch of answers has been queued.

// queueLocked adds a reply.
func (c *conn) queueLocked(s *slot) {
	if c.broken != nil {
		c.releaseLocked(s)
		c.wakeLocked()
		return
	}
	c.out.push(s)
}

// push gets queued replies sent; now: by the caller.
func (c *conn) push(now bool) {
	if now && c.send(false) {
		return
	}
	select {
	case c.wakeSender <- struct{}{}:
	default:
	}
}

// sendLoop is the send goroutine.
func (c *conn) sendLoop() {
	defer close(c.sent)
	for {
		select {
		case <-c.wakeSender:
			c.send(true)
		case <-c.quit:
			return
		}
	}
}

// send transmits queued replies until there are none. It returns false when
// the socket is full and wait is not set; the send goroutine then goes on.
func (c *conn) send(wait bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sending || c.mute {
		return true // the sender will find what was queued, or resume
	}
	c.sending = true
	for c.tx.pending() || c.out.head != nil {
		for c.out.head != nil && c.tx.room() {
			c.tx.add(c.out.pop())
		}
		c.mu.Unlock()
		err := c.tx.flush(wait)
		c.mu.Lock()
		if errors.Is(err, errFull) {
			c.sending = false
			return false
		}
		if c.mute && errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
		if err != nil {
			c.breakLocked(err)
		}
		for s := c.tx.finished(); s != nil; s = c.tx.finished() {
			c.releaseLocked(s)
		}
		c.wakeLocked()
		if c.mute {
			break
		}
	}
	c.sending = false
	c.wakeLocked()
	return true
}

// breakLocked drops all replies: the client is gone.
func (c *conn) breakLocked(err error) {
	c.broken = err
	c.tx.abandon()
	for c.out.head != nil {
		c.releaseLocked(c.out.pop())
	}
	c.nc.Close() // ends receive
}
