package nvmf

import (
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"softiser/internal/nvme"
	"softiser/target/portal"
)

// queue is one connection: it becomes the admin queue or an I/O queue of a controller
// with its Connect command.
type queue struct {
	fe   *Frontend
	conn *portal.Conn
	t    nvme.QueueTransport
	log  *zap.Logger

	identity *identity // of the TLS key; nil: the connection is plain

	timer *time.Timer // the deadline of Connect and authentication; afterwards calls look

	// Set by Connect, on the receive goroutine; ctrl is read by others under mu.
	ctrl    *controller
	id      uint16
	memory  *holding // what it holds, on whose share
	half    *request // first command of a fused operation, waiting for the second; receive goroutine only
	entries int
	noFlow  bool            // the host has turned SQ flow control off: completions carry no SQ head
	auth    *authentication // nil: the host need not prove who it is
	proved  atomic.Bool     // its commands are served
	cut     atomic.Bool     // its commands have been aborted, or are about to be: no command may take effect

	sqHead   atomic.Uint32 // completions so far
	open     atomic.Int64  // commands that have not been answered
	finishes atomic.Bool   // closes when open is 0
	counters counters

	mu       sync.Mutex
	requests []*request // guarded by mu: of all slots that have been used
	unread   unread     // guarded by mu
	over     bool       // guarded by mu
}

// unread detects a host that does not read: data waits to be sent, and the socket takes none.
type unread struct {
	since time.Duration // time of the last look, since the front end was made
	sent  uint64        // bytes that the socket had taken then
	waits bool          // data was waiting then
}

// look notes at the time now whether data is waiting, and how many bytes the socket has taken so
// far. It does so at intervals of at least every, and reports whether data was waiting at the
// last look and none has been taken since.
func (u *unread) look(now, every time.Duration, waiting bool, sent uint64) (stuck bool) {
	if now-u.since < every {
		return false
	}
	stuck = waiting && u.waits && sent == u.sent
	u.since, u.waits, u.sent = now, waiting, sent
	return stuck
}

// begin starts the connection.
func (q *queue) begin() {
	q.mu.Lock()
	q.timer = time.AfterFunc(q.fe.cfg.Timeouts.Connect, func() { q.t.Terminate(errConnect) })
	q.mu.Unlock()
	q.t.Start(q)
}

// connected ends the deadline of Connect and authentication, and starts the looks at whether the
// host reads what it is sent, and sends the data that it was asked for.
func (q *queue) connected() {
	q.conn.Place.Done()
	q.mu.Lock()
	defer q.mu.Unlock()
	q.timer.Stop()
	if !q.over {
		q.lookLaterLocked()
	}
}

// lookLaterLocked sets the timer for the next look. The caller holds q.mu.
func (q *queue) lookLaterLocked() {
	t := &q.fe.cfg.Timeouts
	next := t.Unread
	if t.Data > 0 {
		next = min(next, t.Data)
	}
	q.timer = time.AfterFunc(next, q.look)
}

// look ends a connection whose host has not taken anything of what waits for it for Timeouts.Unread, or
// has not sent the data of a command for Timeouts.Data.
func (q *queue) look() {
	waiting, sent := q.t.Backlog()
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.over {
		return
	}
	t, now := &q.fe.cfg.Timeouts, time.Since(q.fe.epoch)
	if q.unread.look(now, t.Unread, waiting, sent) {
		go q.t.Terminate(errUnread)
		return
	}
	for _, r := range q.requests {
		if asked := r.asked.Load(); asked > 0 && t.Data > 0 && now-time.Duration(asked) >= t.Data {
			go q.t.Terminate(errOwed)
			return
		}
	}
	q.lookLaterLocked()
}

// fail closes the connection of a host that has failed to authenticate, once the commands that it
// has sent are answered.
func (q *queue) fail() {
	q.proved.Store(false)
	q.finish()
}

func (q *queue) isOver() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.over
}

// finish closes the connection when what it has under way is answered.
func (q *queue) finish() {
	q.finishes.Store(true)
	q.finished()
}

// finished ends the connection if it finishes and nothing is under way. It is called when
// either has become true.
func (q *queue) finished() {
	if !q.finishes.Load() {
		return
	}
	q.mu.Lock()
	now := q.open.Load() <= int64(q.waitingEvents())
	q.mu.Unlock()
	if now {
		q.t.Terminate(nil)
	}
}

// waitingEvents is how many of the commands wait for events, which may never come.
func (q *queue) waitingEvents() int {
	if q.ctrl == nil || q.id != 0 {
		return 0
	}
	return q.ctrl.events.waiting()
}

// carrier is what the queue's connection is, as hosts are told.
func (q *queue) carrier() nvme.TransportType {
	switch q.conn.Transport {
	case portal.RDMA, portal.RoCE:
		return nvme.TransportRDMA
	}
	return nvme.TransportTCP
}

// Push implements volume.Port.
func (q *queue) Push() { q.t.Push() }

// Command implements nvme.QueueUpper.
func (q *queue) Command(k *nvme.Command) {
	q.open.Add(1)
	r, _ := k.App.(*request)
	if r == nil {
		r = &request{q: q}
		k.App = r
		q.mu.Lock()
		q.requests = append(q.requests, r)
		q.mu.Unlock()
	}
	r.begin(k)
	half := q.takeHalf()
	s := q.refuses(r)
	io := s == nvme.Success && q.id != 0 && k.SQE.Opcode() != nvme.OpFabrics
	if half != nil && !io {
		half.end(nvme.AbortedMissingFused)
	}
	switch {
	case s != nvme.Success:
		r.end(s)
	case k.SQE.Opcode() == nvme.OpFabrics:
		q.fabrics(r)
	case !io:
		adminRequest{r}.run()
	case q.fuse(half, r):
	default:
		volumeRequest{r}.arrive()
	}
}

// refuses returns the status of a command that is refused whatever it is, Success for none: the
// queue is being cut, the capsule was damaged or found no room, it does not use SGLs (PSDT
// 01b, which fabrics require), or it does not fit the state of the queue (no Connect, no
// authentication, controller not ready).
func (q *queue) refuses(r *request) nvme.Status {
	sqe := &r.cmd.SQE
	switch {
	case q.cut.Load():
		return nvme.AbortRequested
	case r.cmd.Corrupt:
		return nvme.TransientTransport
	case r.cmd.NoRoom:
		return nvme.CommandInterrupted
	case sqe.PSDT() != 1:
		return nvme.InvalidField | nvme.DoNotRetry
	case q.ctrl == nil && (sqe.Opcode() != nvme.OpFabrics || sqe.FabricsType() != nvme.FabricsConnect):
		return nvme.CommandSequenceError | nvme.DoNotRetry
	case q.ctrl == nil:
	case !q.proved.Load():
		if sqe.Opcode() != nvme.OpFabrics || sqe.FabricsType() != nvme.FabricsAuthSend && sqe.FabricsType() != nvme.FabricsAuthReceive {
			return nvme.AuthenticationRequired | nvme.DoNotRetry
		}
	default:
		q.ctrl.alive.seen.Store(true)
		if q.id != 0 && !q.ctrl.ready() {
			return nvme.CommandSequenceError | nvme.DoNotRetry
		}
	}
	return nvme.Success
}

// fabrics carries out a Fabrics command.
func (q *queue) fabrics(r *request) {
	sqe := &r.cmd.SQE
	if sqe.Fuse() != nvme.FuseNone {
		r.end(nvme.InvalidField | nvme.DoNotRetry)
		return
	}
	switch t := sqe.FabricsType(); {
	case t == nvme.FabricsConnect && q.ctrl == nil:
		connectRequest{r}.start()
	case t == nvme.FabricsConnect:
		r.end(nvme.CommandSequenceError | nvme.DoNotRetry)
	case t == nvme.FabricsAuthSend:
		authRequest{r}.send()
	case t == nvme.FabricsAuthReceive:
		authRequest{r}.receive()
	case t == nvme.FabricsPropertyGet && q.id == 0:
		adminRequest{r}.propertyGet()
	case t == nvme.FabricsPropertySet && q.id == 0:
		adminRequest{r}.propertySet()
	default:
		r.end(nvme.InvalidOpcode | nvme.DoNotRetry)
	}
}

// DataArrived implements nvme.QueueUpper.
func (q *queue) DataArrived(k *nvme.Command, err error) { k.App.(*request).arrived(err) }

// Sent implements nvme.QueueUpper.
func (q *queue) Sent(k *nvme.Command) { k.App.(*request).release() }

// Ended implements nvme.QueueUpper.
func (q *queue) Ended(err error) {
	q.mu.Lock()
	q.over = true
	q.timer.Stop()
	q.mu.Unlock()
	if half := q.takeHalf(); half != nil {
		half.end(nvme.AbortedMissingFused)
		q.t.Push()
	}
	q.conn.Place.Done()
	if q.auth != nil {
		q.auth.end()
	}
	if c := q.ctrl; c != nil {
		c.lost(q, err)
	} else if err != nil {
		q.fe.lines.early.Info(q.log, "NVMe: the connection ended before Connect", zap.Error(err))
	}
	q.fe.left(q)
}

// head returns the SQ head pointer for the next completion, and counts that completion.
func (q *queue) head() uint16 {
	if q.noFlow {
		return nvme.NoSQHead
	}
	n := q.sqHead.Add(1)
	if q.entries == 0 { // Connect was refused
		return 0
	}
	return uint16(n % uint32(q.entries))
}
