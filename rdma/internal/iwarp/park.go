package iwarp

import (
	"fmt"
	"net"
	"time"

	"softiser/internal/sockio"
	"softiser/rdma/internal/mpa"
	"softiser/rdma/internal/verbs"
	"softiser/rdma/internal/wire"
)

// A queue pair goes from one process to the next while it is parked: its receiver has stopped
// between two messages, and nothing that was queued is left. While a Read is in flight its
// receiver reads on, and so it does while the kernel has memory by reference.
//
//	Park ──▶ reads on until may says so ──▶ stands ──▶ Still: nothing is queued ──▶ Carry ─▶ Adopt
//	             ▲      ▲── a Read is sent ────┘
//	             └─ Unpark
//
// What is left then are the numbers of the next messages, what was agreed on, and bytes that
// were read and not looked at. No STag is among it: the sinks of Reads are closed with the
// answer, and windows and regions are the user's, who knows whether the peer has any.

// Park makes the receiver stop between two messages as soon as may, which it calls without
// locks, reports true and nothing is in flight for which it has to read; Nudge makes it ask
// again though nothing comes. changed is called, with locks held, when Still may have become
// true; resumed, which may be nil, by the receiver when the parking has ended. False: the queue
// pair is not connected, or parked already.
func (qp *QP) Park(may func() bool, changed, resumed func()) bool {
	qp.Mu.Lock()
	defer qp.Mu.Unlock()
	if qp.StateLocked() != verbs.StateRTS || qp.Dying.Load() || qp.halt.wish.Load() != nil {
		return false
	}
	qp.halt.wish.Store(&parking{may: may, changed: changed, resumed: resumed})
	qp.conn.SetReadDeadline(passed)
	return true
}

// Nudge makes the receiver ask whether it may stop.
func (qp *QP) Nudge() {
	qp.Mu.Lock()
	defer qp.Mu.Unlock()
	if p := qp.halt.wish.Load(); p != nil && !p.stands && !qp.Dying.Load() {
		qp.conn.SetReadDeadline(passed)
	}
}

// Still reports whether the queue pair stands, has sent what was queued, and has had all
// answers. It remains so as long as nothing is posted.
func (qp *QP) Still() bool {
	qp.Mu.Lock()
	defer qp.Mu.Unlock()
	return qp.stillLocked()
}

func (qp *QP) stillLocked() bool {
	p, t := qp.halt.wish.Load(), &qp.tx
	return p != nil && p.stands && qp.livesLocked() && qp.SQ.Empty() && !t.busy && t.empty == 0 && qp.asked.empty() && qp.start.ext != extPending
}

// Unpark makes the queue pair go on.
func (qp *QP) Unpark() {
	qp.Mu.Lock()
	defer qp.Mu.Unlock()
	p := qp.halt.wish.Swap(nil)
	if p == nil {
		return
	}
	qp.halt.over = p.resumed
	if !qp.Dying.Load() {
		until := time.Time{}
		if p.resumed != nil && !p.stands {
			until = passed // the receiver is to come by
		}
		qp.conn.SetReadDeadline(until)
	}
	qp.halt.moved.Broadcast()
}

// Carried is what a parked queue pair is, for another process.
type Carried struct {
	Rev        int       `json:"mpa_revision"`
	Initiator  bool      `json:"initiator,omitempty"` // of the start-up
	CRC        bool      `json:"crc"`
	GSO        bool      `json:"gso,omitempty"`
	IRD        int       `json:"ird"`
	ORD        int       `json:"ord"`
	RTR        mpa.RTR   `json:"rtr,omitempty"`
	FPDUSize   int       `json:"fpdu_size"` // the largest that is sent, bytes
	Extensions bool      `json:"extensions,omitempty"`
	Next       [4]uint32 `json:"next_msn"`     // to be sent, by queue number
	Expected   [4]uint32 `json:"expected_msn"` // of the peer
	ByRef      uint32    `json:"sent_by_reference,omitempty"`
	Unread     []byte    `json:"unread,omitempty"` // from the socket, of messages that nobody has seen
}

// Check says what is wrong with what has come from another process.
func (k *Carried) Check() error {
	least, most := wire.FPDULen(128), wire.LenField+wire.MaxULPDU+2+wire.CRCLen
	switch {
	case k.Rev < 0 || k.Rev > 2:
		return fmt.Errorf("MPA revision %d; supported are 0 to 2", k.Rev)
	case k.IRD < 0 || k.IRD >= mpa.MaxQueue || k.ORD < 0 || k.ORD >= mpa.MaxQueue:
		return fmt.Errorf("IRD %d, ORD %d; %d is the limit", k.IRD, k.ORD, mpa.MaxQueue-1)
	case k.RTR > mpa.RTRSend|mpa.RTRWrite|mpa.RTRRead:
		return fmt.Errorf("ready-to-receive message %#x", uint8(k.RTR))
	case k.FPDUSize < least || k.FPDUSize > most:
		return fmt.Errorf("FPDUs of %d bytes; want %d to %d", k.FPDUSize, least, most)
	case len(k.Unread) > rxDeep:
		return fmt.Errorf("%d bytes that nobody has seen; %d is the limit", len(k.Unread), rxDeep)
	}
	return nil
}

// Carry returns what goes to another process, beside the socket, which is nc and stays
// the queue pair's. Preconditions: Still.
func (qp *QP) Carry() (k Carried, nc net.Conn, err error) {
	qp.Mu.Lock()
	defer qp.Mu.Unlock()
	if !qp.stillLocked() {
		return k, nil, fmt.Errorf("%w: queue pair %d is not parked", verbs.ErrState, qp.Num)
	}
	i := &qp.info
	return Carried{
		Rev: i.Rev, Initiator: i.Initiator, CRC: i.CRC, GSO: i.GSO, IRD: i.IRD, ORD: i.ORD, RTR: i.RTR, FPDUSize: i.FPDUSize,
		Extensions: qp.start.ext == extOn, Next: qp.tx.msn, Expected: qp.rx.msn, ByRef: qp.zc.next,
		Unread: append([]byte(nil), qp.rx.in.buf[qp.rx.in.r:qp.rx.in.w]...),
	}, qp.conn.Net(), nil
}

// Adopt connects qp over nc by what another process has carried. On error nc is the
// caller's to close.
func (qp *QP) Adopt(nc net.Conn, p *Params, k *Carried) error {
	if err := k.Check(); err != nil {
		return fmt.Errorf("%w: %w", verbs.ErrInvalid, err)
	}
	if err := sockio.Apply(nc, sockio.Options{SendBuffer: p.SndBuf, RecvBuffer: p.RcvBuf}); err != nil {
		return err
	}
	conn, err := qp.socket(nc, p)
	if err != nil {
		return err
	}
	r := mpa.Result{Rev: k.Rev, CRC: k.CRC, GSO: k.GSO, IRD: k.IRD, ORD: k.ORD, RTR: k.RTR}
	info := Info{Result: r, Initiator: k.Initiator, MSS: conn.MSS(), FPDUSize: k.FPDUSize, Local: nc.LocalAddr(), Remote: nc.RemoteAddr()}
	return qp.run(conn, p, &info, func() { qp.resumeLocked(k) })
}

// resumeLocked puts a connection that is about to run where k has left it.
func (qp *QP) resumeLocked(k *Carried) {
	qp.tx.allowed, qp.tx.msn, qp.zc.next = true, k.Next, k.ByRef
	qp.rx.begun, qp.rx.msn = true, k.Expected
	qp.start.heard = true
	if k.Extensions {
		qp.start.ext = extOn
	}
	qp.rx.in.preload(k.Unread)
}
