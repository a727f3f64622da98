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

// replies is the sending half of a connection: replies that have not left, and whose turn it
// is to send them.
type replies struct {
	c *conn // whose mu guards the fields down to broken

	queue   replyQueue // not in tx yet
	sending bool       // a goroutine is within send, and owns tx
	mute    bool       // nothing is sent
	broken  error      // the socket failed: replies are dropped

	tx   sender        // under c.mu while nobody is within send
	wake chan struct{} // wakes the send goroutine
	quit chan struct{} // ends it
	done chan struct{} // closed when it has ended
}

// init makes it the sending half of c.
func (o *replies) init(c *conn) {
	o.c, o.wake, o.quit, o.done = c, make(chan struct{}, 1), make(chan struct{}), make(chan struct{})
	o.tx.init(c.raw)
}

// pendingLocked reports whether there are replies that have not left.
func (o *replies) pendingLocked() bool { return o.sending || o.queue.head != nil || o.tx.pending() }

// addLocked adds a reply.
func (o *replies) addLocked(s *slot) {
	if o.broken != nil {
		o.c.releaseLocked(s)
		o.c.wakeLocked()
		return
	}
	o.queue.push(s)
}

// push sends queued replies, as far as the socket takes them at once.
func (o *replies) push() {
	if !o.send(false) {
		o.wakeUp()
	}
}

// wakeUp has the send goroutine send queued replies.
func (o *replies) wakeUp() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// loop is the send goroutine.
func (o *replies) loop() {
	defer close(o.done)
	for {
		select {
		case <-o.wake:
			o.send(true)
		case <-o.quit:
			return
		}
	}
}

// stop ends the send goroutine.
func (o *replies) stop() {
	close(o.quit)
	<-o.done
}

// send transmits queued replies until there are none. It returns false when
// the socket is full and wait is not set; the send goroutine then goes on.
func (o *replies) send(wait bool) bool {
	c := o.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if o.sending || o.mute {
		return true // the sender will find what was queued, or resume
	}
	o.sending = true
	for o.tx.pending() || o.queue.head != nil {
		for o.queue.head != nil && o.tx.room() {
			o.tx.add(o.queue.pop())
		}
		c.mu.Unlock()
		err := o.tx.flush(wait)
		c.mu.Lock()
		if errors.Is(err, errFull) {
			o.sending = false
			return false
		}
		if o.mute && errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
		if err != nil {
			o.breakLocked(err)
		}
		for s := o.tx.finished(); s != nil; s = o.tx.finished() {
			c.releaseLocked(s)
		}
		c.wakeLocked()
		if o.mute {
			break
		}
	}
	o.sending = false
	c.wakeLocked()
	return true
}

// breakLocked drops all replies: the client is gone.
func (o *replies) breakLocked(err error) {
	o.broken = err
	o.tx.abandon()
	for o.queue.head != nil {
		o.c.releaseLocked(o.queue.pop())
	}
	o.c.nc.Close() // ends receive
}
