package ublk

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"syscall"

	"softiser/blockdev"
	"softiser/initiator/blockio"
	"softiser/initiator/internal/errno"
	"softiser/internal/uring"
)

// ring is what a queue wants of a uring.Ring.
type ring interface {
	Next() *uring.Entry
	Enter(wait int) error
	Take([]uring.Completion) int
}

// queue is one hardware queue of a device: its tags and the goroutine that serves them.
//
// That goroutine owns ring and batch. Everything else is shared between it and the
// session's receive goroutines (in requestDone), under mu.
type queue struct {
	id    uint16
	lun   LUN
	user  *blockio.Flusher // whose requests come here
	fd    int32            // of the character device
	fetch uint32           // the driver's numbers of its two commands
	fetC  uint32

	ring  ring
	wake  counter
	desc  []byte // the driver's descriptors, one per tag
	slots []slot
	batch []*blockio.Request // to be submitted
	alive int                // tags that the driver has not given up
	err   error              // why it gave up the first one, unless the device was stopped

	mu      sync.Mutex // guards the fields below
	ended   []*slot    // whose results the driver is to be told
	spare   []*slot    // ended, the time before
	waiting bool       // the goroutine waits for the ring, and wake is to end that
	under   int        // requests that the volume has
	resting bool       // it is given no more
	held    []*blockio.Request
}

// slot is one tag: at most one request, and its memory.
type slot struct {
	q      *queue
	tag    uint16
	req    blockio.Request
	buf    []byte
	n      int32 // bytes that its request moves
	result int32
	again  bool // write zeroes has been repeated
}

// wakeTag marks the completion of a read of the wake counter.
const wakeTag = 1 << 32

// init makes the slots of a queue; slot i has the memory from i*size on.
func (q *queue) init(depth, size int, memory []byte) {
	q.slots = make([]slot, depth)
	q.batch = make([]*blockio.Request, 0, depth)
	q.ended, q.spare = make([]*slot, 0, depth), make([]*slot, 0, depth)
	for i := range q.slots {
		s := &q.slots[i]
		s.q, s.tag, s.buf = q, uint16(i), memory[i*size:(i+1)*size:(i+1)*size]
		s.req.User, s.req.Done = s, requestDone
	}
}

// run serves the queue until its device is stopped. The driver binds a queue to the thread
// that fetches its first requests: the goroutine keeps it and takes it to its end, by which
// the driver knows that a queue is served no more. started gets nil once the driver has
// every tag, or why it has not.
func (q *queue) run(started chan<- error) error {
	runtime.LockOSThread()
	if err := q.start(); err != nil {
		started <- err
		return err
	}
	started <- nil
	defer func() {
		q.mu.Lock()
		q.waiting = false // nobody is to be woken: requests may end behind this, when a ring has failed
		q.mu.Unlock()
	}()
	got := make([]uring.Completion, len(q.slots)+1)
	for q.alive > 0 {
		q.commit()
		if err := q.ring.Enter(1); err != nil {
			return fmt.Errorf("ublk: queue %d: %w", q.id, err)
		}
		q.mu.Lock()
		q.waiting = false
		q.mu.Unlock()
		for _, c := range got[:q.ring.Take(got)] {
			q.completed(c)
		}
		if len(q.batch) > 0 && q.mayStart() {
			q.lun.SubmitBatch(q.batch)
		}
		q.batch = q.batch[:0]
	}
	return q.err
}

// start fetches the first request of every tag.
func (q *queue) start() error {
	q.arm()
	for i := range q.slots {
		q.command(&q.slots[i], q.fetch)
	}
	q.alive = len(q.slots)
	if err := q.ring.Enter(0); err != nil {
		return fmt.Errorf("ublk: queue %d: %w", q.id, err)
	}
	// No request comes before the device is started: what is there was refused.
	var refused [1]uring.Completion
	if q.ring.Take(refused[:]) > 0 {
		return fmt.Errorf("ublk: queue %d: the driver refuses tag %d: %w", q.id, refused[0].UserData, syscall.Errno(-refused[0].Res))
	}
	return nil
}

// arm waits for the next wake.
func (q *queue) arm() {
	e := q.ring.Next()
	e.Op, e.FD, e.Addr, e.Len, e.UserData = uring.OpRead, q.wake.fd, addressOf(q.wake.value), uint32(len(q.wake.value)), wakeTag
}

// command gives a tag to the driver. The ring has an entry for each.
func (q *queue) command(s *slot, op uint32) {
	e := q.ring.Next()
	e.Op, e.FD, e.CmdOp, e.UserData = uring.OpCmd, q.fd, uint64(op), uint64(s.tag)
	c := ioCommand{queue: q.id, tag: s.tag, result: s.result, addr: addressOf(s.buf)}
	c.put(e.Cmd[:])
}

// commit has the driver told of what has ended, with the next Enter, and asks to be woken
// from then on.
func (q *queue) commit() {
	q.mu.Lock()
	q.ended, q.spare = q.spare[:0], q.ended
	q.waiting = true
	q.mu.Unlock()
	for _, s := range q.spare {
		q.command(s, q.fetC)
	}
}

// completed takes one completion of the ring.
func (q *queue) completed(c uring.Completion) {
	if c.UserData == wakeTag {
		q.arm()
		return
	}
	if c.Res != 0 {
		q.alive--
		// ENODEV is how the driver ends the tags of a device that is stopped.
		if e := syscall.Errno(-c.Res); e != syscall.ENODEV && q.err == nil {
			q.err = fmt.Errorf("ublk: queue %d: the driver gives up tag %d: %w", q.id, c.UserData, e)
		}
		return
	}
	q.begin(&q.slots[c.UserData])
}

// begin turns the request of a tag into one for the volume.
func (q *queue) begin(s *slot) {
	var d descriptor
	d.get(q.desc[int(s.tag)*descSize:])
	r := &s.req
	r.Off, r.Len, r.Buf = int64(d.start)*sector, int64(d.sectors)*sector, nil
	r.FUA, r.MayUnmap, r.Flusher = d.opFlags&flagFUA != 0, false, q.user
	s.n, s.again = 0, false
	switch d.opFlags & opMask {
	case opRead:
		r.Op, r.FUA = blockio.OpRead, false
	case opWrite:
		r.Op = blockio.OpWrite
	case opFlush:
		r.Op, r.Off, r.Len, r.FUA = blockio.OpFlush, 0, 0, false
	case opDiscard:
		r.Op = blockio.OpDiscard
	case opWriteZeroes:
		r.Op, r.MayUnmap = blockio.OpWriteZeroes, d.opFlags&flagNoUnmap == 0
	default:
		q.end(s, -int32(syscall.EOPNOTSUPP))
		return
	}
	if r.Op == blockio.OpRead || r.Op == blockio.OpWrite {
		if r.Len > int64(len(s.buf)) {
			q.end(s, -int32(syscall.EINVAL))
			return
		}
		r.Buf, s.n = s.buf[:r.Len], int32(r.Len)
	}
	q.batch = append(q.batch, r)
}

// mayStart counts the batch among the volume's requests, or holds it back.
func (q *queue) mayStart() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.resting {
		q.held = append(q.held, q.batch...)
		return false
	}
	q.under += len(q.batch)
	return true
}

// resume gives the volume what was held back.
func (q *queue) resume() {
	q.mu.Lock()
	held := q.held
	q.resting, q.held = false, nil
	q.under += len(held)
	q.mu.Unlock()
	if len(held) > 0 {
		q.lun.SubmitBatch(held)
	}
}

// requestDone is every request's Done.
func requestDone(r *blockio.Request) {
	s := r.User.(*slot)
	if r.Op == blockio.OpWriteZeroes && !s.again && errors.Is(r.Err, blockdev.ErrNotSupported) {
		// A target may refuse WRITE SAME only when it sees it; the session has learnt that.
		s.again = true
		one := [1]*blockio.Request{r}
		s.q.lun.SubmitBatch(one[:])
		return
	}
	s.q.mu.Lock()
	s.q.under--
	s.q.mu.Unlock()
	if r.Err != nil {
		s.q.end(s, -int32(errno.Of(r.Err)))
		return
	}
	s.q.end(s, s.n)
}

// end queues the result of a tag: bytes moved, or a negative error number.
func (q *queue) end(s *slot, result int32) {
	s.result = result
	q.mu.Lock()
	q.ended = append(q.ended, s)
	wake := q.waiting
	q.waiting = false
	q.mu.Unlock()
	if wake {
		q.wake.signal()
	}
}
