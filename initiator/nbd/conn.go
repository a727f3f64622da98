package nbd

import (
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"softiser/initiator/blockio"
)

// conn is the transmission phase of one connection.
//
// The receive goroutine owns rd, yield, now and batch. Everything else is shared between it,
// the session's receive goroutines (in done) and the sender, under mu.
type conn struct {
	srv    *Server
	nc     net.Conn
	raw    syscall.RawConn
	exp    *Export
	agreed agreed
	block  int
	client *blockio.Flusher // whose requests come here

	rd    reader
	yield yielding
	now   current
	batch []*blockio.Request // parsed, not yet submitted
	slots []slot

	resting atomic.Bool // the receive goroutine is to stand before it reads on; see rest.go

	mu       sync.Mutex // guards the fields below
	pool     pool
	idle     *slot // free slots
	inFlight int   // requests gathered or submitted, and not answered
	gathered gathering
	out      replies
	waiting  bool // the receive goroutine waits for a slot, a buffer, or the end of drain
	draining bool // no more requests are read
	stands   bool // the receive goroutine waits in stand until resting ends
	ending   bool // the receive goroutine has read its last
	goesOn   sync.Cond

	room chan struct{} // wakes the receive goroutine
}

// slot is one request under way and its reply.
type slot struct {
	req   blockio.Request
	c     *conn
	next  *slot // in idle or in a replyQueue
	in    request
	buf   []byte   // payload buffer, nil without one
	head  [64]byte // reply header
	headN int
	body  []byte // reply payload
	again bool   // write zeroes has been repeated
	begun bool   // part of the reply is on the wire
}

// newConn makes a served connection of a socket on which the handshake has agreed on an
// export.
func newConn(s *Server, nc net.Conn, a agreed) (*conn, error) {
	sc, ok := nc.(syscall.Conn)
	if !ok {
		return nil, fmt.Errorf("nbd: %T is not a socket", nc)
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("nbd: %w", err)
	}
	info := a.export.LUN.Info()
	c := &conn{
		srv: s, nc: nc, raw: raw, exp: a.export, agreed: a, block: max(info.BlockSize, 1), client: a.client,
		batch: make([]*blockio.Request, 0, s.cfg.Depth),
		slots: make([]slot, s.cfg.Depth),
		room:  make(chan struct{}, 1),
	}
	c.goesOn.L = &c.mu
	c.gathered.timer = time.AfterFunc(time.Hour, c.overdue)
	c.gathered.timer.Stop()
	c.pool.limit = s.cfg.Memory
	for i := range c.slots {
		sl := &c.slots[i]
		sl.c, sl.req.User, sl.req.Done = c, sl, requestDone
		sl.next, c.idle = c.idle, sl
	}
	if _, ok := nc.(*net.UnixConn); ok {
		enlarge(raw)
	}
	c.rd.init(raw)
	c.rd.stall = c.stand
	if runtime.GOMAXPROCS(0) == 1 {
		c.rd.midst = c.midst
	}
	c.out.init(c)
	return c, nil
}

// run serves requests until the client disconnects or the server stops.
func (c *conn) run() error {
	go c.out.loop()
	err := c.receive()
	c.mu.Lock()
	c.ending = true
	c.mu.Unlock()
	c.submit()
	c.drain()
	c.out.stop()
	c.gathered.timer.Stop()
	c.nc.Close()
	c.free()
	return err
}

// stopReading ends the receive loop once it has used up what has been read.
func (c *conn) stopReading() {
	c.mu.Lock()
	c.draining = true
	c.goesOn.Broadcast()
	c.mu.Unlock()
	c.nc.SetReadDeadline(passed)
}

// drain waits until every request is answered and the replies have left.
func (c *conn) drain() {
	for {
		c.mu.Lock()
		busy := c.inFlight > 0 || c.out.pendingLocked()
		c.waiting = busy
		c.mu.Unlock()
		if !busy {
			return
		}
		<-c.room
	}
}

// free gives the buffers back. Nothing is under way.
func (c *conn) free() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pool.drop()
}

// wakeLocked wakes the receive goroutine when it waits.
func (c *conn) wakeLocked() {
	if c.waiting {
		c.waiting = false
		select {
		case c.room <- struct{}{}:
		default:
		}
	}
}

// acquire takes a slot and, for n > 0, a buffer, waiting for both; with an error there is
// neither. What has been parsed is submitted before it waits.
func (c *conn) acquire(n int) (*slot, error) {
	for {
		c.mu.Lock()
		if s := c.idle; s != nil {
			if n == 0 {
				c.idle = s.next
				c.mu.Unlock()
				return s, nil
			}
			b, err := c.pool.get(n)
			if err != nil {
				c.mu.Unlock()
				return nil, err
			}
			if b != nil {
				c.idle = s.next
				c.mu.Unlock()
				s.buf = b
				return s, nil
			}
		}
		c.waiting = true
		c.mu.Unlock()
		c.submit()
		if c.resting.Load() && c.stand() {
			continue
		}
		<-c.room
	}
}

// releaseLocked gives a slot and its buffer back.
func (c *conn) releaseLocked(s *slot) {
	if s.buf != nil {
		c.pool.put(s.buf)
		s.buf = nil
	}
	s.body, s.req.Buf, s.begun = nil, nil, false
	s.next, c.idle = c.idle, s
}

// requestDone is every request's Done.
func requestDone(r *blockio.Request) {
	s := r.User.(*slot)
	c := s.c
	if c.repeat(s) {
		return
	}
	c.finish(s)
	c.replied(s)
}

// replied queues the reply of a slot whose request was in flight.
func (c *conn) replied(s *slot) {
	c.mu.Lock()
	c.inFlight--
	last := c.inFlight == 0
	c.out.addLocked(s)
	rs := c.gathered.takeLocked()
	c.mu.Unlock()
	c.give(rs)
	if last {
		c.out.push()
	} else {
		c.out.wakeUp()
	}
}

// answer queues a reply that needs no request to the session.
func (c *conn) answer(s *slot) {
	c.mu.Lock()
	c.out.addLocked(s)
	c.mu.Unlock()
	c.out.wakeUp()
}

// quiet errors are how connections usually end.
func quiet(err error) bool {
	return err == nil || errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}
