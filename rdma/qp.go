package rdma

import (
	"fmt"
	"math/bits"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"softiser/internal/sockio"
	"softiser/rdma/internal/mem"
	"softiser/rdma/internal/mpa"
	"softiser/rdma/internal/wire"
)

// QPConfig describes a queue pair. Zero fields mean the default beside them.
type QPConfig struct {
	SendCQ, RecvCQ *CQ  // required; may be the same
	SRQ            *SRQ // receives come from there instead of PostRecv
	MaxSend        int  // work requests in the send queue; 128
	MaxRecv        int  // buffers in the receive queue; 128
	MaxSGE         int  // pieces per work request; 16
	MaxInline      int  // bytes of FlagInline; 256
	SignalAll      bool // every work request is signalled
	Context        any  // for the user; see QP.Context
	// OnEvent, when set, is called on a goroutine of the queue pair; it must not
	// block and must not call Close.
	OnEvent func(*QP, Event)
}

// QP is a queue pair: one connection to one peer. The goroutines behind it are
// one receiver and one transmitter, from connection to Done.
//
// Memory named in a posted work request belongs to the queue pair until its
// completion. All methods may be called concurrently. Close must not be called
// from a CQ handler.
type QP struct {
	dev    *Device
	pd     *PD
	cfg    QPConfig
	num    uint32
	sendCQ *CQ
	recvCQ *CQ

	// sqMu guards the queues shared by posters, transmitter and receiver. Below it:
	// regions (see gate.go), CQ.mu.
	sqMu    sync.Mutex
	state   QPState
	err     error       // first cause of the end
	ended   bool        // teardown has flushed; posts flush at once
	dying   atomic.Bool // set once: transmitter and receiver must stop
	txBusy  bool        // somebody is the transmitter and owns tx
	txOpen  bool        // FPDUs may be sent (RFC 5044 §7.1.2: responder after the first FPDU)
	finSent bool
	sq      []sqe      // ring, power of two
	sqHead  uint32     // oldest not completed
	sqNext  uint32     // next to start; advanced by the transmitter only
	sqTail  uint32     // next free
	sentOff uint64     // bytes of the stream that the kernel has taken
	orq     []orqEntry // Reads and atomics sent, in order; ring of ORD
	orqHead uint32
	orqTail uint32
	irq     []irqEntry // Reads and atomics to answer; ring, power of two
	irqHead uint32
	irqTail uint32
	hidden  uint32     // entries of the send queue made by the engine itself
	empty   emptyWrite // zero-length Writes that are due, see empty.go
	txIdle  sync.Cond  // txBusy has become false; on sqMu

	// txIO is held by the transmitter while it builds and sends a round. Taken
	// before sqMu.
	txIO sync.Mutex
	tx   txState // owned by the transmitter; refs and poison guarded by txIO
	zc   zcState // MSG_ZEROCOPY

	rq rqueue

	mem  mem.Stream // this queue pair's identity at the gate to memory
	lent lendList   // memory that the peer may be about to fill

	rx    rxState     // owned by the receive goroutine
	inRx  atomic.Bool // the receive goroutine runs handlers: Push is bounded
	conn  *sockio.Conn
	info  ConnInfo
	sinks []*mem.Region // one per ORD slot

	initiator bool          // of the MPA start-up
	rtr       mpa.RTR       // kind agreed on, 0: none
	busyPoll  time.Duration // see ConnParams.BusyPoll
	lastByte  time.Duration // of BusyPoll, see clock: when the last byte came, or the last wait began; owned by the receive goroutine
	auto      autoPoll      // of BusyPollAuto; owned by the receive goroutine
	onlyP     bool          // of BusyPollAuto: whoever polls keeps the scheduler from looking at other sockets
	heard     bool          // an FPDU has arrived; guarded by sqMu
	nudger    *time.Timer   // see armNudgeLocked; guarded by sqMu
	speaker   *time.Timer   // see ConnParams.SpeakFirst; guarded by sqMu
	term      *wire.Term    // to be sent by teardown; guarded by sqMu
	fin       *time.Timer   // waits for the peer's FIN; guarded by sqMu
	ext       extState      // use of RFC 7306; guarded by sqMu

	txWake chan struct{} // capacity 1
	txStop chan struct{}
	wg     sync.WaitGroup // receive and transmit goroutine
	done   chan struct{}
	closed atomic.Bool

	failing chan struct{} // closed with dying

	statMu sync.Mutex // guards stats; a leaf
	stats  QPStats
}

// CreateQP creates an unconnected queue pair.
func (pd *PD) CreateQP(cfg QPConfig) (*QP, error) {
	d := pd.dev
	def(&cfg.MaxSend, 128)
	def(&cfg.MaxRecv, 128)
	def(&cfg.MaxSGE, 16)
	def(&cfg.MaxInline, 256)
	switch {
	case cfg.SendCQ == nil || cfg.RecvCQ == nil:
		return nil, invalid("a queue pair needs SendCQ and RecvCQ")
	case cfg.SendCQ.dev != d || cfg.RecvCQ.dev != d:
		return nil, invalid("completion queue of another device")
	case cfg.SRQ != nil && cfg.SRQ.pd != pd:
		return nil, invalid("shared receive queue of another protection domain")
	case cfg.MaxSend < 1 || cfg.MaxSend > d.cfg.MaxQPWR:
		return nil, invalid("MaxSend %d, the device allows 1 to %d", cfg.MaxSend, d.cfg.MaxQPWR)
	case cfg.MaxRecv < 1 || cfg.MaxRecv > d.cfg.MaxQPWR:
		return nil, invalid("MaxRecv %d, the device allows 1 to %d", cfg.MaxRecv, d.cfg.MaxQPWR)
	case cfg.MaxSGE < 1 || cfg.MaxSGE > d.cfg.MaxSGE:
		return nil, invalid("MaxSGE %d, the device allows 1 to %d", cfg.MaxSGE, d.cfg.MaxSGE)
	case cfg.MaxInline < 0 || cfg.MaxInline > d.cfg.MaxInline:
		return nil, invalid("MaxInline %d, the device allows 0 to %d", cfg.MaxInline, d.cfg.MaxInline)
	case pd.gone.Load():
		return nil, fmt.Errorf("%w: protection domain", ErrClosed)
	}
	qp := &QP{
		dev: d, pd: pd, cfg: cfg, sendCQ: cfg.SendCQ, recvCQ: cfg.RecvCQ,
		sq:     make([]sqe, roundUp(cfg.MaxSend)),
		txWake: make(chan struct{}, 1),
		txStop: make(chan struct{}),
		done:   make(chan struct{}),

		failing: make(chan struct{}),
	}
	qp.mem = mem.Stream{Opened: qp.lent.opened, Closed: qp.lent.closed, Revoked: qp.poisonTx}
	qp.txIdle.L = &qp.sqMu
	qp.rq.growLocked(cfg.MaxRecv)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, fmt.Errorf("%w: device", ErrClosed)
	}
	if len(d.qps) >= d.cfg.MaxQP {
		return nil, fmt.Errorf("%w: %d queue pairs", ErrLimit, d.cfg.MaxQP)
	}
	d.nextQPN++
	qp.num = d.nextQPN
	d.qps[qp] = struct{}{}
	pd.use.Add(1)
	qp.sendCQ.use.Add(1)
	qp.recvCQ.use.Add(1)
	if cfg.SRQ != nil {
		cfg.SRQ.use.Add(1)
	}
	return qp, nil
}

// roundUp is the next power of two.
func roundUp(n int) int {
	if n <= 1 {
		return 1
	}
	return 1 << bits.Len(uint(n-1))
}

// Num is the number of the queue pair on its device.
func (qp *QP) Num() uint32 { return qp.num }

// PD is the protection domain.
func (qp *QP) PD() *PD { return qp.pd }

// Context is QPConfig.Context.
func (qp *QP) Context() any { return qp.cfg.Context }

// Done is closed when the connection has ended, everything has been flushed and
// the goroutines of the queue pair are gone. It is never closed for a queue pair
// that was not connected, except by Close.
func (qp *QP) Done() <-chan struct{} { return qp.done }

// Failing is closed when the connection has begun to end. The end waits for the
// completion handlers: one that waits, for instance because the peer reads too
// slowly to be asked for more, must return then.
func (qp *QP) Failing() <-chan struct{} { return qp.failing }

// Err tells why the connection ended: nil while it lives and after a clean
// Disconnect from this side; io.EOF when the peer closed it; *TerminateError; or
// another error.
func (qp *QP) Err() error {
	qp.sqMu.Lock()
	defer qp.sqMu.Unlock()
	return qp.err
}

// Info is what the two ends have agreed on; the zero value before the connection.
func (qp *QP) Info() ConnInfo {
	qp.sqMu.Lock()
	defer qp.sqMu.Unlock()
	return qp.info
}

// IRD is the number of Reads of the peer that may be outstanding.
func (qp *QP) IRD() int { return qp.Info().IRD }

// ORD is the number of own Reads that may be outstanding; more wait in the queue.
func (qp *QP) ORD() int { return qp.Info().ORD }

// CRC reports whether FPDUs carry a CRC.
func (qp *QP) CRC() bool { return qp.Info().CRC }

// FPDUSize is the largest FPDU that is sent, bytes.
func (qp *QP) FPDUSize() int { return qp.Info().FPDUSize }

// LocalAddr is the local address, nil before the connection.
func (qp *QP) LocalAddr() net.Addr { return qp.Info().LocalAddr }

// RemoteAddr is the peer's address, nil before the connection.
func (qp *QP) RemoteAddr() net.Addr { return qp.Info().RemoteAddr }

// QPAttr are the settings of a queue pair.
type QPAttr struct {
	Num                                   uint32
	State                                 QPState
	MaxSend, MaxRecv, MaxSGE, MaxInline   int
	SendQueued, RecvQueued, ReadsInFlight int
}

// Attr returns settings and fill levels.
func (qp *QP) Attr() QPAttr {
	recvs := qp.rq.len()
	qp.sqMu.Lock()
	defer qp.sqMu.Unlock()
	return QPAttr{
		Num: qp.num, State: qp.state,
		MaxSend: qp.cfg.MaxSend, MaxRecv: qp.cfg.MaxRecv, MaxSGE: qp.cfg.MaxSGE, MaxInline: qp.cfg.MaxInline,
		SendQueued: int(qp.sqTail - qp.sqHead), RecvQueued: recvs, ReadsInFlight: int(qp.orqTail - qp.orqHead),
	}
}
