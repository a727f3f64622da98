package nvmetcp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"softiser/internal/crc32c"
	"softiser/internal/segs"
	"softiser/internal/sockio"
)

// Bounds of one transmit round and of one turn.
const (
	roundBytes = 2 << 20 // offered to the socket in one call
	pushBytes  = 8 << 20 // sent by a caller of Push before the transmit goroutine goes on
	rxBytes    = 1 << 20 // the same for the receive goroutine, which has other work
)

// outPDU is a PDU in the transmit queue.
//
//	head: header, header digest, padding │ data (by reference) │ data digest
type outPDU struct {
	next   *outPDU
	head   []byte // backed by inline
	inline [TermLen + MaxTermData]byte
	list   [][]byte // segments of data; its array is kept
	data   segs.View
	tail   [DigestLen]byte
	ntail  int
	then   notice   // told when this PDU has gone; nil: nobody
	length int      // of the whole PDU; 0 until sealed
	sent   int      // bytes that the socket has taken
	last   *command // a controller's: whose last data it has, as long as command.put is this
	taken  bool     // the transmitter has seen it: no more changes
}

// seal completes a PDU just before its first byte goes out. It reports false if the
// data cannot be read.
func (p *outPDU) seal() bool {
	h := (*CH)(p.head)
	if h.Flags()&FlagHDGST != 0 {
		p.head = binary.LittleEndian.AppendUint32(p.head, crc32c.Update(0, p.head))
	}
	n := p.data.Len()
	if n > 0 {
		for len(p.head) < h.PDO() {
			p.head = append(p.head, 0)
		}
		if h.Flags()&FlagDDGST != 0 {
			crc, ok := p.data.Checksum(0)
			if !ok {
				return false
			}
			binary.LittleEndian.PutUint32(p.tail[:], crc)
			p.ntail = DigestLen
		}
	}
	p.length = len(p.head) + n + p.ntail
	return true
}

// appendVec appends what has not been sent yet, as far as room goes.
func (p *outPDU) appendVec(v []sockio.Vec) []sockio.Vec {
	skip := p.sent
	if skip < len(p.head) {
		v = sockio.Append(v, p.head[skip:])
		skip = 0
	} else {
		skip -= len(p.head)
	}
	d := p.data
	if skip < d.Len() {
		d.Skip(skip)
		skip = 0
		for d.Len() > 0 {
			if len(v) == cap(v) {
				return v
			}
			s := d.Next()
			v = sockio.Append(v, s)
			d.Skip(len(s))
		}
	} else {
		skip -= d.Len()
	}
	if len(v) < cap(v) {
		v = sockio.Append(v, p.tail[skip:p.ntail])
	}
	return v
}

// txQueue is the transmit queue. Guarded by conn.mu, except where noted.
type txQueue struct {
	head, tail *outPDU
	free       *outPDU
	nfree      int
	busy       bool   // somebody is the transmitter: the fields below are his
	sent       uint64 // bytes that the socket has taken

	batch []*outPDU // the transmitter's
	vec   []sockio.Vec
	fn    func(uintptr) bool // conn.txReady
}

const maxFree = 256

func (t *txQueue) alloc() *outPDU {
	p := t.free
	if p == nil {
		p = &outPDU{}
	} else {
		t.free, p.next = p.next, nil
		t.nfree--
	}
	p.head = p.inline[:0]
	return p
}

func (t *txQueue) push(p *outPDU) {
	if t.tail == nil {
		t.head = p
	} else {
		t.tail.next = p
	}
	t.tail = p
}

// pop unlinks and frees the first PDU.
func (t *txQueue) pop() {
	p := t.head
	if t.head = p.next; t.head == nil {
		t.tail = nil
	}
	if p.then != nil {
		p.then.goneLocked()
	}
	if t.nfree == maxFree {
		return
	}
	if p.last != nil && p.last.put == p {
		p.last.put = nil // it has left: the response cannot ride in it any more
	}
	clear(p.list)
	*p = outPDU{list: p.list[:0], next: t.free}
	t.free = p
	t.nfree++
}

// abandon empties the queue at the end of the connection.
func (t *txQueue) abandon() {
	for t.head != nil {
		t.pop()
	}
}

// Push transmits what is queued.
func (c *conn) Push() { c.push(pushBytes) }

func (c *conn) push(budget int) {
	c.mu.Lock()
	if c.tx.busy || !c.txWorkLocked() {
		c.mu.Unlock()
		return
	}
	c.tx.busy = true
	if c.transmit(budget) {
		c.endTurnLocked()
	} else {
		c.wakeTxLocked()
	}
	c.mu.Unlock()
}

func (c *conn) txWorkLocked() bool {
	return c.tx.head != nil || c.st == stateClosing && !c.finSent
}

func (c *conn) endTurnLocked() {
	c.tx.busy = false
	c.cond.Broadcast()
}

// handOverLocked gives the queue to the transmit goroutine.
func (c *conn) handOverLocked() {
	if !c.started || c.tx.busy || !c.txWorkLocked() {
		return
	}
	c.tx.busy = true
	c.wakeTxLocked()
}

func (c *conn) wakeTxLocked() {
	if c.txWake == nil {
		c.txWake = make(chan struct{}, 1)
		go c.txLoop(c.txWake)
	}
	c.txWake <- struct{}{} // busy is set by whoever wakes it up, so the slot is free
}

// txLoop is the transmit goroutine; it is the transmitter from each wake-up until
// the queue is empty.
func (c *conn) txLoop(wake <-chan struct{}) {
	for range wake {
		if err := c.sk.WriteLoop(c.tx.fn); err != nil {
			c.mu.Lock()
			c.failLocked(err)
			c.endTurnLocked()
			c.mu.Unlock()
		}
	}
}

// txReady transmits in the transmit goroutine, with the socket writable.
func (c *conn) txReady(uintptr) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.transmit(1 << 62) {
		return false
	}
	c.endTurnLocked()
	return true
}

// transmit sends until the queue is empty (true), or the socket is full or the
// budget spent (false). It is called by the transmitter with mu held; mu is
// released around system calls and up-calls.
func (c *conn) transmit(budget int) (empty bool) {
	t := &c.tx
	for {
		if c.st == stateDead {
			t.abandon()
		}
		if c.role.settleLocked() {
			continue
		}
		if c.st == stateDead {
			return true
		}
		if !t.collect() {
			c.endStreamLocked()
			return true
		}
		if budget <= 0 {
			return false
		}
		c.mu.Unlock()
		n, err := c.sendBatch()
		c.mu.Lock()
		c.advanceLocked(n)
		budget -= n
		switch {
		case err == nil:
		case err == sockio.ErrAgain:
			return false
		default:
			c.failLocked(fmt.Errorf("nvmetcp: send: %w", err))
			return true
		}
	}
}

// endStreamLocked sends FIN behind the last PDU of a connection that is closing.
func (c *conn) endStreamLocked() {
	if c.st != stateClosing || c.finSent {
		return
	}
	c.finSent = true
	c.lingerEnd = time.Now().Add(c.linger)
	c.sk.SetReadDeadline(c.lingerEnd)
	_ = c.sk.CloseWrite()
}

// collect picks the PDUs for one system call.
func (t *txQueue) collect() bool {
	t.batch = t.batch[:0]
	size, pieces := 0, 0
	for p := t.head; p != nil && size < roundBytes && pieces < sockio.MaxVec-8; p = p.next {
		p.taken = true
		t.batch = append(t.batch, p)
		size += p.data.Len() + CapsuleRespLen
		pieces += 2 + p.data.Pieces()
	}
	return len(t.batch) > 0
}

var errSendFault = errors.New("nvmetcp: the memory of queued data cannot be accessed")

// sendBatch makes the one vectored call. It runs without mu.
func (c *conn) sendBatch() (int, error) {
	t := &c.tx
	if t.vec == nil {
		t.vec = make([]sockio.Vec, 0, 64)
	}
	v := t.vec[:0]
	for _, p := range t.batch {
		if p.length == 0 && !p.seal() {
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

// advanceLocked takes n bytes off the queue.
func (c *conn) advanceLocked(n int) {
	t := &c.tx
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
		t.pop()
	}
}
