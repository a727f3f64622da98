package iwarp

import (
	"sync"
	"sync/atomic"
	"time"

	"softiser/internal/sockio"
	"softiser/rdma/internal/mem"
	"softiser/rdma/internal/mpa"
	"softiser/rdma/internal/verbs"
	"softiser/rdma/internal/wire"
)

// Device is what the engines of a device share.
type Device struct {
	awake atomic.Int32  // receive goroutines with BusyPollAuto that are not parked
	turn  atomic.Uint32 // number of the queue pair whose one was last unparked
}

// QP is the engine of one queue pair. The goroutines behind it are one receiver and
// one transmitter, from connection to Done.
type QP struct {
	*verbs.QP
	dev *Device

	// Guarded by Mu.
	txBusy  bool // somebody is the transmitter and owns tx
	txOpen  bool // FPDUs may be sent (RFC 5044 §7.1.2: responder after the first FPDU)
	finSent bool
	sentOff uint64     // bytes of the stream that the kernel has taken
	orq     []orqEntry // Reads and atomics sent, in order; ring of ORD
	orqHead uint32
	orqTail uint32
	irq     []irqEntry // Reads and atomics to answer; ring, power of two
	irqHead uint32
	irqTail uint32
	empty   emptyWrite // zero-length Writes that are due, see empty.go
	txIdle  sync.Cond  // txBusy has become false; on Mu

	// txIO is held by the transmitter while it builds and sends a round. Taken
	// before Mu.
	txIO sync.Mutex
	tx   txState // owned by the transmitter; refs and poison guarded by txIO
	zc   zcState // MSG_ZEROCOPY

	lent lendList // memory that the peer may be about to fill

	rx    rxState     // owned by the receive goroutine
	inRx  atomic.Bool // the receive goroutine runs handlers: Push is bounded
	conn  *sockio.Conn
	info  Info
	sinks []*mem.Region // one per ORD slot

	initiator bool          // of the MPA start-up
	rtr       mpa.RTR       // kind agreed on, 0: none
	busyPoll  time.Duration // 0, BusyPollAuto, or how long the receiver spins
	lastByte  time.Duration // of BusyPoll, see clock: when the last byte came, or the last wait began; owned by the receive goroutine
	auto      autoPoll      // of BusyPollAuto; owned by the receive goroutine
	onlyP     bool          // of BusyPollAuto: whoever polls keeps the scheduler from looking at other sockets
	heard     bool          // an FPDU has arrived; guarded by Mu
	nudger    *time.Timer   // see armNudgeLocked; guarded by Mu
	speaker   *time.Timer   // of a responder that may speak first; guarded by Mu
	term      *wire.Term    // to be sent by teardown; guarded by Mu
	remote    bool          // the peer has sent a Terminate; guarded by Mu
	fin       *time.Timer   // waits for the peer's FIN; guarded by Mu
	ext       extState      // use of RFC 7306; guarded by Mu

	txWake chan struct{} // capacity 1
	txStop chan struct{}
	wg     sync.WaitGroup // receive and transmit goroutine
}

// New makes the engine of a queue pair that is not connected, and makes itself known
// to it.
func New(d *Device, v *verbs.QP) *QP {
	qp := &QP{QP: v, dev: d, txWake: make(chan struct{}, 1), txStop: make(chan struct{})}
	qp.txIdle.L = &v.Mu
	v.Mem = mem.Stream{Opened: qp.lent.opened, Closed: qp.lent.closed, Revoked: qp.poisonTx}
	v.Engine = qp
	return qp
}

// Info is what the two ends have agreed on; the zero value before the connection.
func (qp *QP) Info() Info {
	qp.Mu.Lock()
	defer qp.Mu.Unlock()
	return qp.info
}
