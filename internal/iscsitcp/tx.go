package iscsitcp

import (
	"errors"
	"fmt"
	"time"

	"softiser/internal/iscsi"
	"softiser/internal/sockio"
)

// Bounds of one transmit round and of one turn.
const (
	roundBytes = 2 << 20 // offered to the socket in one call
	pushBytes  = 8 << 20 // sent by a caller of Push before the transmit goroutine goes on
	rxBytes    = 1 << 20 // the same for the receive goroutine, which has other work
)

// transmitter is the half of a connection that sends: the queue, and whoever is sending
// from it. Guarded by Conn.mu, which the callers of its methods hold, except where noted.
type transmitter struct {
	c          *Conn
	head, tail *outPDU
	free       *outPDU
	nfree      int
	busy       bool // somebody is the transmitter: the fields below are his
	sending    bool // a system call is using queued PDUs: none may be unlinked
	doneHead   *iscsi.Transfer
	doneTail   *iscsi.Transfer
	again      int          // PDUs in the queue that are sent once more
	unsent     iscsi.Unsent // answers in the queue
	sent       uint64       // bytes that the socket has taken

	batch []*outPDU // the transmitter's
	vec   []sockio.Vec
	fn    func(uintptr) bool // ready
}

func (t *transmitter) init(c *Conn) { t.c, t.fn = c, t.ready }

func (t *transmitter) push(p *outPDU) {
	if t.tail == nil {
		t.head = p
	} else {
		t.tail.next = p
	}
	t.tail = p
}

// unlink takes p out of the queue, behind prev, and frees it.
func (t *transmitter) unlink(prev, p *outPDU) {
	if prev == nil {
		t.head = p.next
	} else {
		prev.next = p.next
	}
	if p.next == nil {
		t.tail = prev
	}
	t.release(p)
}

// lastOf finds the last PDU of x in front of p.
func (t *transmitter) lastOf(x *iscsi.Transfer, p *outPDU) (last *outPDU) {
	for q := t.head; q != p; q = q.next {
		if q.xfer == x {
			last = q
		}
	}
	return last
}

// pop unlinks and frees the first PDU.
func (t *transmitter) pop() {
	p := t.head
	if t.head = p.next; t.head == nil {
		t.tail = nil
	}
	t.release(p)
}

const maxFree = 512

func (t *transmitter) release(p *outPDU) {
	if p.again {
		t.again--
	}
	t.unsent.Sub(p.cost)
	if t.nfree == maxFree {
		return
	}
	p.reset()
	p.next, t.free = t.free, p
	t.nfree++
}

// alloc returns an empty PDU with its header in place.
func (t *transmitter) alloc(b *iscsi.BHS) *outPDU {
	p := t.free
	if p == nil {
		p = &outPDU{}
	} else {
		t.free, p.next = p.next, nil
		t.nfree--
	}
	p.head = append(p.inline[:0], b[:]...)
	return p
}

// done queues a completed transfer for its up-call.
func (t *transmitter) done(x *iscsi.Transfer) {
	x.Own.Next = nil
	if t.doneTail == nil {
		t.doneHead = x
	} else {
		t.doneTail.Own.Next = x
	}
	t.doneTail = x
}

// purge empties the queue at the end of the connection and returns the transfers
// that have to be completed, err in those that were cut off.
func (t *transmitter) purge(err error) *iscsi.Transfer {
	for t.head != nil {
		p := t.head
		if x := p.xfer; x != nil && p.last {
			if x.Err == nil {
				x.Err = err
			}
			t.done(x)
		}
		t.pop()
	}
	d := t.doneHead
	t.doneHead, t.doneTail, t.free, t.nfree = nil, nil, nil, 0
	return d
}

// Push implements iscsi.Datamover.
func (c *Conn) Push() { c.tx.turn(pushBytes) }

// turn makes the caller the transmitter for up to budget bytes, unless there is one or
// nothing to do. It locks c.mu.
func (t *transmitter) turn(budget int) {
	c := t.c
	c.mu.Lock()
	if t.busy || !t.due() {
		c.mu.Unlock()
		return
	}
	t.busy = true
	if t.transmit(budget) {
		t.endTurn()
	} else {
		t.wakeUp()
	}
	c.mu.Unlock()
}

// due reports whether a transmitter has something to do.
func (t *transmitter) due() bool {
	c := t.c
	return c.st != iscsi.ConnDead && (t.head != nil || t.doneHead != nil || c.st == iscsi.ConnClosing && !c.finSent)
}

func (t *transmitter) endTurn() {
	c := t.c
	t.busy = false
	c.cond.Broadcast()
}

// handOver gives the queue to the transmit goroutine.
func (t *transmitter) handOver() {
	c := t.c
	if !c.started || t.busy || !t.due() {
		return
	}
	t.busy = true
	t.wakeUp()
}

func (t *transmitter) wakeUp() {
	c := t.c
	if c.txWake == nil {
		c.txWake = make(chan struct{}, 1)
		go t.loop(c.txWake)
	}
	c.txWake <- struct{}{} // busy is set by whoever wakes it up, so the slot is free
}

// loop is the transmit goroutine; it is the transmitter from each wake-up until
// the queue is empty.
func (t *transmitter) loop(wake <-chan struct{}) {
	c := t.c
	for range wake {
		if err := c.sk.WriteLoop(t.fn); err != nil {
			c.mu.Lock()
			c.failLocked(err)
			t.endTurn()
			c.mu.Unlock()
		}
	}
}

// ready transmits in the transmit goroutine, with the socket writable.
func (t *transmitter) ready(uintptr) bool {
	c := t.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if !t.transmit(1 << 62) {
		return false
	}
	t.endTurn()
	return true
}

// transmit sends until the queue is empty (true), or the socket is full or the
// budget spent (false). It is called by the transmitter with mu held; mu is
// released around system calls and up-calls.
func (t *transmitter) transmit(budget int) (empty bool) {
	c := t.c
	for {
		if x := t.doneHead; x != nil {
			t.doneHead, t.doneTail = nil, nil
			c.mu.Unlock()
			for x != nil {
				next := x.Own.Next
				x.Own.Next = nil
				c.complete(x)
				x = next
			}
			c.mu.Lock()
			continue
		}
		if c.st == iscsi.ConnDead {
			return true
		}
		if !t.collect() {
			if c.st == iscsi.ConnClosing && !c.finSent {
				c.finSent = true
				c.lingerEnd = time.Now().Add(c.cfg.Linger)
				c.sk.SetReadDeadline(c.lingerEnd)
				_ = c.sk.CloseWrite()
			}
			if t.doneHead != nil {
				continue
			}
			return true
		}
		if budget <= 0 {
			return false
		}
		hd, dd := c.digestsLocked()
		t.sending = true
		c.mu.Unlock()
		n, err := t.sendBatch(hd, dd)
		c.mu.Lock()
		t.sending = false
		c.cond.Broadcast()
		t.advance(n)
		budget -= n
		switch {
		case err == nil:
		case err == sockio.ErrAgain:
			return false
		default:
			c.failLocked(fmt.Errorf("iscsitcp: send: %w", err))
			return true
		}
	}
}

func (c *Conn) digestsLocked() (header, data bool) {
	return c.enabled && c.params.HeaderDigest == iscsi.DigestCRC32C, c.enabled && c.params.DataDigest == iscsi.DigestCRC32C
}

// collect picks the PDUs for one system call, dropping those of aborted
// transfers that have not begun.
func (t *transmitter) collect() bool {
	t.batch = t.batch[:0]
	var prev *outPDU
	size, pieces := 0, 0
	for p := t.head; p != nil && size < roundBytes && pieces < sockio.MaxVec-8; {
		next := p.next
		if x := p.xfer; x != nil && x.Own.Aborted && !p.taken {
			if p.last {
				if x.Err == nil {
					x.Err = iscsi.ErrAborted
				}
				// What has begun still uses the memory: the last of it ends the transfer.
				if q := t.lastOf(x, p); q != nil {
					q.last = true
				} else {
					t.done(x)
				}
			}
			t.unlink(prev, p)
			p = next
			continue
		}
		p.taken = true
		t.batch = append(t.batch, p)
		size += p.data.Len() + iscsi.BHSLen
		pieces += 2 + p.data.Pieces()
		prev, p = p, next
	}
	return len(t.batch) > 0
}

var errSendFault = errors.New("iscsitcp: the memory of queued data cannot be accessed")

// sendBatch makes the one vectored call. It runs without mu, with sending set.
func (t *transmitter) sendBatch(hd, dd bool) (int, error) {
	c := t.c
	if t.vec == nil {
		t.vec = make([]sockio.Vec, 0, 64)
	}
	v := t.vec[:0]
	for _, p := range t.batch {
		if p.length == 0 && !p.seal(hd, dd) {
			if len(v) == 0 {
				return 0, errSendFault
			}
			break
		}
		if need := len(v) + 2 + p.data.Pieces(); need > cap(v) && cap(v) < sockio.MaxVec {
			v = append(make([]sockio.Vec, 0, min(max(2*cap(v), need), sockio.MaxVec)), v...)
		}
		v = p.appendVec(v)
		if len(v) == cap(v) {
			break
		}
	}
	n, err := c.sk.Writev(v, false)
	clear(v)
	t.vec = v[:0]
	if err == nil {
		c.stats.sends.Add(1)
	} else if err == sockio.ErrFault {
		err = errSendFault
	}
	return n, err
}

// advance takes n bytes off the queue.
func (t *transmitter) advance(n int) {
	c := t.c
	t.sent += uint64(n)
	for n > 0 {
		p := t.head
		rest := p.length - p.sent
		if n < rest {
			p.sent += n
			return
		}
		n -= rest
		c.stats.pdusOut.Add(1)
		if p.payload {
			c.stats.payloadOut.Add(uint64(p.data.Len()))
		}
		if p.task != nil {
			p.task.queued--
		}
		if p.xfer != nil && p.last {
			t.done(p.xfer)
		}
		t.pop()
	}
}
