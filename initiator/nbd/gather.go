package nbd

import (
	"time"

	"softiser/initiator/blockio"
)

// A client that sends its requests one by one is slower than this process: each of them would
// be received and would leave in system calls of its own, which cost more than all else that is
// done for it. So the processor is offered to others before more is received (see yield.go), and
// short reads and writes are gathered as long as there are fewer of them than of requests under
// way, and leave with the first answer, in one call.
//
//	parsed ──▶ gathered ──▶ submitted ──▶ answered ──▶ replied
//	                 ▲                        │
//	                 └── an answer; as many ──┘
//	                     as are under way; anything else than short reads and writes; gatherTime
//
// That costs no time where answers come soon. Where they do not (a slow volume), the timer
// says so, and the next gatherRest batches leave as they come.
const (
	gatherFrom = 8                      // requests under way; with fewer the target would be idle meanwhile
	gatherTime = 500 * time.Microsecond // what is gathered waits for at most twice this
	gatherRest = 1000
)

// gathering are requests that are not submitted yet. The connection's lock guards it.
type gathering struct {
	reqs  []*blockio.Request
	spare []*blockio.Request // room for the next ones; nil while it is being submitted
	turn  uint64             // how often reqs has been taken
	timer *time.Timer
	armed bool
	began uint64 // turn in which the timer was set
	rest  int    // batches that are not to be gathered
}

// addLocked adds rs, and returns what is to be submitted now. So many requests are under way.
func (g *gathering) addLocked(rs []*blockio.Request, under int) []*blockio.Request {
	g.reqs = append(g.reqs, rs...)
	if g.rest > 0 {
		g.rest--
		return g.takeLocked()
	}
	if under < gatherFrom || len(g.reqs) >= under {
		return g.takeLocked()
	}
	for _, r := range rs {
		if r.Op != blockio.OpRead && r.Op != blockio.OpWrite || r.Len >= directRead {
			return g.takeLocked()
		}
	}
	if !g.armed {
		g.armLocked()
	}
	return nil
}

// takeLocked returns all that is gathered.
func (g *gathering) takeLocked() []*blockio.Request {
	rs := g.reqs
	if len(rs) == 0 {
		return nil
	}
	g.turn++
	g.reqs, g.spare = g.spare, nil
	return rs
}

// armLocked sets the timer. Nobody stops it: that would be done as often as requests leave.
func (g *gathering) armLocked() {
	g.armed, g.began = true, g.turn
	g.timer.Reset(gatherTime)
}

// overdueLocked is for the timer. It returns what has waited too long.
func (g *gathering) overdueLocked() []*blockio.Request {
	g.armed = false
	switch {
	case len(g.reqs) == 0:
	case g.turn == g.began:
		g.rest = gatherRest
		return g.takeLocked()
	default: // these came later than it was set
		g.armLocked()
	}
	return nil
}

// gather is for the parsed requests when the next ones have to be waited for.
func (c *conn) gather() {
	if len(c.batch) == 0 {
		return
	}
	c.mu.Lock()
	under := c.inFlight - len(c.gathered.reqs)
	c.inFlight += len(c.batch)
	rs := c.gathered.addLocked(c.batch, under)
	c.mu.Unlock()
	c.batch = c.batch[:0]
	c.give(rs)
}

// underWay is how many requests have been gathered or submitted, and not answered.
func (c *conn) underWay() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.inFlight
}

// submit hands all parsed requests to the session.
func (c *conn) submit() {
	c.mu.Lock()
	c.inFlight += len(c.batch)
	c.gathered.reqs = append(c.gathered.reqs, c.batch...)
	rs := c.gathered.takeLocked()
	c.mu.Unlock()
	c.batch = c.batch[:0]
	c.give(rs)
}

// overdue is what the timer calls.
func (c *conn) overdue() {
	c.mu.Lock()
	rs := c.gathered.overdueLocked()
	c.mu.Unlock()
	c.give(rs)
}

// give submits what has been taken.
func (c *conn) give(rs []*blockio.Request) {
	if len(rs) == 0 {
		return
	}
	c.exp.LUN.SubmitBatch(rs)
	c.mu.Lock()
	if c.gathered.spare == nil {
		c.gathered.spare = rs[:0]
	}
	c.mu.Unlock()
}
