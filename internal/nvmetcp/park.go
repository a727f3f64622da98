package nvmetcp

import (
	"errors"
	"time"

	"softiser/internal/pdustream"
	"softiser/internal/sockio"
)

// A connection goes from one process to the next while it is parked: it has stopped reading
// in front of a PDU, has said what was queued, and is silent. While data is still to come that
// a controller has asked for it reads on, and keeps the commands between.
//
//	Park ──▶ reads on until no data is due ──▶ stands ──▶ Still: the queue is empty ──▶ Carry ─▶ Restore
//	             ▲      ▲── GetData of a command ─┘             nothing is sent any more
//	             └─ Unpark: commands that were kept begin

// parking is the wish that a connection is parked. Its fields are guarded by conn.mu.
type parking struct {
	may    func() bool // asked by the receive goroutine; never changed
	stands bool        // the receive goroutine waits
	mute   bool        // nothing is sent any more
}

// silent reports whether nothing may be sent.
func (p *parking) silent() bool { return p != nil && p.mute }

// errParked ends a run of the receiver in front of a PDU.
var errParked = errors.New("nvmetcp: the connection is to be parked")

// passed is a deadline that ends waiting at once.
var passed = time.Unix(1, 0)

// Park makes the receive goroutine begin no more commands, and stop in front of a PDU, as soon
// as no data is due and may, which it calls, reports true; Nudge makes it ask again though
// nothing comes. A host's may holds it while a command is outstanding whose answer is near. It
// reports false for a connection that is not ready, or parked.
func (c *conn) Park(may func() bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.st != stateReady || c.park.Load() != nil {
		return false
	}
	c.park.Store(&parking{may: may})
	c.sk.SetReadDeadline(passed)
	return true
}

// Nudge makes the receive goroutine ask whether it may stop.
func (c *conn) Nudge() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.park.Load(); p != nil && !p.stands && c.st == stateReady {
		c.sk.SetReadDeadline(passed)
	}
}

// Stands reports whether no command begins, as long as those that have begun ask for no data.
func (c *conn) Stands() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.park.Load()
	return p != nil && p.stands && c.st == stateReady
}

// Still reports whether the connection stands and has sent what was queued. From then on it
// is silent: what is queued waits for Unpark.
func (c *conn) Still() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.park.Load()
	if p == nil || !p.stands || !c.quietLocked() {
		return false
	}
	p.mute = true
	return true
}

func (c *conn) quietLocked() bool {
	return c.st == stateReady && c.tx.Empty() && !c.tx.Busy() && !c.tx.Sending() && c.role.settledLocked()
}

// parkedLocked reports whether the connection can be carried.
func (c *conn) parkedLocked() bool {
	p := c.park.Load()
	return p.silent() && p.stands && c.quietLocked()
}

// Unpark makes the connection go on.
func (c *conn) Unpark() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.park.Swap(nil) == nil {
		return
	}
	if c.st == stateReady {
		c.sk.SetReadDeadline(passed) // for again
	}
	c.cond.Broadcast()
	c.tx.handOver()
}

// stops reports whether the receive goroutine is to stop in front of a PDU.
func (c *conn) stops() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stopsLocked()
}

func (c *conn) stopsLocked() bool {
	p := c.park.Load()
	return p != nil && c.st == stateReady && !c.role.owedLocked() && p.may()
}

// again reports whether the receiver is to go on that has ended with err. When that was for
// Park it waits first, as long as the connection is parked, and no data is due.
func (c *conn) again(err error) bool {
	c.mu.Lock()
	if err != errParked && !sockio.IsTimeout(err) || c.st == stateDead || c.fin.Begun() {
		c.mu.Unlock()
		return false
	}
	c.sk.SetReadDeadline(time.Time{}) // before it is looked at: another nudge counts
	c.mu.Unlock()
	c.tx.Turn(pdustream.RxBytes)
	c.mu.Lock()
	if c.rx.Unread() != nil {
		c.rx.Rewind()
		for c.stopsLocked() {
			p := c.park.Load()
			p.stands = true
			c.cond.Wait()
			p.stands = false
		}
	}
	parked := c.park.Load() != nil
	c.mu.Unlock()
	if !parked {
		c.role.resumed()
		c.tx.Turn(pdustream.RxBytes)
	}
	c.rx.Rewind()
	return true
}
