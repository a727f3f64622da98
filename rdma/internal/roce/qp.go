package roce

import (
	"sync"
	"sync/atomic"
	"time"

	"softiser/rdma/internal/mem"
	"softiser/rdma/internal/roce/cm"
	"softiser/rdma/internal/roce/port"
	"softiser/rdma/internal/roce/rc"
	"softiser/rdma/internal/verbs"
)

// QP is the engine of one queue pair.
type QP struct {
	*verbs.QP
	dev   *Device
	users atomic.Int32 // of the number: the queue pair, and each of its connections that the manager knows

	wake chan struct{}  // for the loop; capacity 1
	wg   sync.WaitGroup // the loop
	low  atomic.Bool    // the shared receive queue has reached its limit: the loop tells

	// Guarded by Mu, from the connection on.
	conn   *cm.Conn
	port   *hostPort
	info   Info
	send   *port.Sender
	req    *rc.Requester
	resp   *rc.Responder
	out    rc.Outgoing
	wcs    []verbs.WC
	start  time.Time // of the clock of req
	timer  *time.Timer
	armed  time.Duration // when timer runs out; 0: it does not run
	sent   sent          // since the statistics were last brought up to date
	got    sent
	unsent error // the newest error of the network, for the one who asks why nobody answers

	open    bool          // requests may be sent: the peer is ready to receive
	heard   bool          // a request of the peer has come
	told    bool          // the manager and the owner know of that
	rtu     bool          // the peer has said that it is ready
	ending  bool          // the handshake of the end has begun
	owed    time.Duration // when an acknowledgement was put off, for the loop to send; 0: none is
	more    bool          // the pump has stopped because it is somebody else's turn
	closing *time.Timer   // bounds the handshake of the end
}

// sent counts packets and payload in one direction.
type sent struct{ packets, wire, payload, sends, reads uint64 }

// New makes the engine of a queue pair that is not connected, and makes itself known to
// it. The number of the queue pair comes from here.
func New(d *Device, v *verbs.QP) error {
	n, err := host.numbers.Take()
	if err != nil {
		return err
	}
	nothing := func(*mem.Region) {} // what is sent from regions is copied or sent while they are held
	v.Num, v.Mem = n, mem.Stream{Opened: nothing, Closed: nothing, Revoked: nothing}
	qp := &QP{QP: v, dev: d, wake: make(chan struct{}, 1)}
	qp.users.Store(1)
	v.Engine = qp
	return nil
}

// Retire gives the number back, when the last connection is forgotten too. The queue pair
// has been closed.
func (qp *QP) Retire() { qp.release() }

func (qp *QP) release() {
	if qp.users.Add(-1) == 0 {
		host.numbers.Release(qp.Num)
	}
}

// Push sends what is queued, as far as the window allows; see verbs.Engine.
func (qp *QP) Push() {
	qp.Mu.Lock()
	ended := qp.Flushed
	if qp.Connected && !qp.Dying.Load() {
		qp.settleLocked()
	}
	qp.Mu.Unlock()
	if ended {
		qp.SendCQ.Dispatch() // posts that were flushed at once
	}
}

// Stop has the loop see to the end; see verbs.Engine.
func (qp *QP) Stop() { qp.kick() }

// Drain has the loop begin the handshake of the end when everything has been answered;
// see verbs.Engine.
func (qp *QP) Drain() { qp.kick() }

// Wait returns when the loop is gone; see verbs.Engine.
func (qp *QP) Wait() { qp.wg.Wait() }

// Discard needs do nothing: the flag of the entry is looked at for every packet that
// comes, with Mu held; see verbs.Engine.
func (qp *QP) Discard(*verbs.WQE) {}

// Reads is the number of Reads and atomics in flight; see verbs.Engine.
func (qp *QP) Reads() int {
	if qp.req == nil {
		return 0
	}
	return qp.req.Reads()
}

// SRQLow has the loop tell of it; see verbs.Engine.
func (qp *QP) SRQLow() {
	qp.low.Store(true)
	qp.kick()
}

// kick wakes the loop up.
func (qp *QP) kick() {
	select {
	case qp.wake <- struct{}{}:
	default:
	}
}

// Info is what the two ends have agreed on; the zero value before the connection.
func (qp *QP) Info() Info {
	qp.Mu.Lock()
	defer qp.Mu.Unlock()
	return qp.info
}
