package nbd

import (
	"context"
	"errors"
	"time"
)

// Connections go from one process to the next while they rest: nothing is read from them,
// what had been read is answered, and nothing is sent any more.
//
//	Rest ──▶ stand: the receive goroutine waits, wherever it was ──▶ answered ──▶ sent, or the client
//	             ▲                                                                takes no more: mute ──▶ Carry
//	             └──────────────────────── Resume ◀──────────────────────────────────┘
//
// A client may stop anywhere: what has come of a request that is not complete is carried as
// the bytes that the next process reads first, and what has not left of the replies as the
// bytes that it sends first.

// current is the request that the receive goroutine has taken from the stream and not begun.
type current struct {
	in     request
	within bool  // the goroutine is within a request: in holds
	slot   *slot // for in; nil: it has none yet, or the request is being refused
	// errno is with what the request is being refused; 0: it is not. What comes of its payload then is dropped.
	errno uint32
}

// passed is a deadline that ends waiting at once.
var passed = time.Unix(1, 0)

// rest asks the receive goroutine to stand.
func (c *conn) rest() {
	c.mu.Lock()
	c.resting.Store(true)
	c.wakeLocked()
	c.mu.Unlock()
	c.nc.SetReadDeadline(passed)
}

// stand waits as long as the connection rests; false: nothing more is to be read. The receive
// goroutine calls it wherever it would wait for more.
func (c *conn) stand() bool {
	c.submit()
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.resting.Load() && !c.draining {
		c.stands = true
		c.goesOn.Wait()
	}
	c.stands = false
	return !c.draining
}

// resume ends what rest has begun.
func (c *conn) resume() {
	c.nc.SetReadDeadline(time.Time{}) // before the receive goroutine, which waits in stand, may read on
	c.nc.SetWriteDeadline(time.Time{})
	c.mu.Lock()
	c.out.mute = false
	c.resting.Store(false)
	c.goesOn.Broadcast()
	c.mu.Unlock()
	c.out.wakeUp()
}

// stillness is what a connection still does.
type stillness struct {
	reads   bool // requests
	under   int  // requests under way
	replies bool // there are replies to be sent
	sends   bool // a reply is being sent
}

func (c *conn) stillness() (s stillness) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.out.broken != nil {
		return stillness{under: c.inFlight}
	}
	return stillness{reads: !c.stands && !c.ending, under: c.inFlight, replies: c.out.pendingLocked(), sends: c.out.sending}
}

// silence has the connection send nothing more, not what is on its way to the socket either.
func (c *conn) silence() {
	c.mu.Lock()
	c.out.mute = true
	c.mu.Unlock()
	c.nc.SetWriteDeadline(passed)
}

// How long Rest waits for clients, and how often it looks.
const (
	handshakePatience = time.Second            // to end a negotiation
	readerPatience    = 500 * time.Millisecond // to take replies
	restLook          = 200 * time.Microsecond
)

// Rest brings every connection to rest until Resume. It waits for requests under way, until
// ctx is done, and returns how many there are all the same; what their outcome is nobody is
// told before Resume. The listeners are the caller's to stop before. With an error some may
// rest: Resume is due.
func (s *Server) Rest(ctx context.Context) (under int, err error) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return 0, ErrServerClosed
	}
	s.resting = true
	for c := range s.conns {
		c.rest()
	}
	s.mu.Unlock()
	begun := time.Now()
	until := func(over func(stillness) bool, given time.Duration) bool {
		for {
			last := ctx.Err() != nil || given > 0 && time.Since(begun) >= given // before it looks: what came about in time counts
			if over := s.all(over); over || last {
				return over
			}
			time.Sleep(restLook)
		}
	}
	for s.negotiating() > 0 && time.Since(begun) < handshakePatience {
		time.Sleep(restLook)
	}
	stands := func(x stillness) bool { return !x.reads }
	if !until(stands, 0) {
		return 0, errors.New("nbd: a connection does not come to rest")
	}
	until(func(x stillness) bool { return x.under == 0 }, 0)
	begun = time.Now()
	until(func(x stillness) bool { return !x.replies }, readerPatience)
	for _, c := range s.connList() {
		c.silence()
	}
	for !s.all(func(x stillness) bool { return !x.sends }) {
		time.Sleep(restLook) // a sender ends at its deadline
	}
	for _, c := range s.connList() {
		under += c.stillness().under
	}
	return under, nil
}

// phases returns the connections that have an export, and how many have none yet.
func (s *Server) phases() (all []*conn, starting int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		all = append(all, c)
	}
	return all, len(s.starting)
}

func (s *Server) connList() []*conn {
	all, _ := s.phases()
	return all
}

func (s *Server) negotiating() int {
	_, n := s.phases()
	return n
}

func (s *Server) all(are func(stillness) bool) bool {
	for _, c := range s.connList() {
		if !are(c.stillness()) {
			return false
		}
	}
	return true
}

// Resume lets the connections go on as if nothing had happened.
func (s *Server) Resume() {
	s.mu.Lock()
	s.resting = false
	s.mu.Unlock()
	for _, c := range s.connList() {
		c.resume()
	}
}
