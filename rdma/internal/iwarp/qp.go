package iwarp

import (
	"sync"
	"sync/atomic"

	"softiser/internal/sockio"
	"softiser/rdma/internal/mem"
	"softiser/rdma/internal/verbs"
	"softiser/rdma/internal/wire"
)

// Device is what the engines of a device share.
type Device struct {
	crowd sockio.Crowd // of the receive goroutines
	tally sockio.Tally // of all connections
}

// Retransmits is how many segments TCP has sent again below the device's queue pairs, past and
// present.
func (d *Device) Retransmits() uint64 { return d.tally.Retransmits() }

// QP is the engine of one queue pair, put together from parts that know each other
// through it. The goroutines behind it are one receiver and one transmitter, from
// connection to Done.
type QP struct {
	*verbs.QP
	dev *Device

	tx    transmitter   // from the queues to the socket
	zc    zerocopy      // the same by reference
	rx    receiver      // from the socket to memory and completions
	wait  sockio.Waiter // how the receiver waits
	reads reads         // Reads and atomics in flight
	asked irq           // those of the peer
	start opening       // what happens once, when a connection begins
	lent  lendList      // memory that the peer may be about to fill
	halt  halt          // the wish that the receiver stops

	conn   *sockio.Conn
	info   Info
	inRx   atomic.Bool    // the receive goroutine runs handlers: Push is bounded
	term   *wire.Term     // to be sent by teardown; guarded by Mu
	remote bool           // the peer has sent a Terminate; guarded by Mu
	wg     sync.WaitGroup // receive and transmit goroutine

	abortive bool // Params.Abortive
}

// New makes the engine of a queue pair that is not connected, and makes itself known
// to it.
func New(d *Device, v *verbs.QP) *QP {
	qp := &QP{QP: v, dev: d}
	qp.tx.qp, qp.zc.qp, qp.rx.qp, qp.rx.in.rx, qp.reads.qp, qp.start.qp = qp, qp, qp, &qp.rx, qp, qp
	qp.tx.wake, qp.tx.stop = make(chan struct{}, 1), make(chan struct{})
	qp.tx.idle.L, qp.halt.moved.L = &v.Mu, &v.Mu
	v.Mem = mem.Stream{Opened: qp.lent.opened, Closed: qp.lent.closed, Revoked: qp.tx.revoked}
	v.Engine = qp
	return qp
}

// Push transmits what is queued, if nobody is doing so already; see verbs.Engine.
func (qp *QP) Push() { qp.tx.push() }

// Discard takes the memory of a Read away, if it has been sent; see verbs.Engine.
func (qp *QP) Discard(e *verbs.WQE) { qp.reads.discardLocked(e) }

// SRQLow tells at once: the receiver takes buffers without a lock; see verbs.Engine.
func (qp *QP) SRQLow() { qp.Owner().Event(verbs.EventSRQLimit) }

// Reads is the number of Reads and atomics in flight; see verbs.Engine.
func (qp *QP) Reads() int { return qp.reads.inFlight() }

// Info is what the two ends have agreed on; the zero value before the connection.
func (qp *QP) Info() Info {
	qp.Mu.Lock()
	defer qp.Mu.Unlock()
	return qp.info
}
