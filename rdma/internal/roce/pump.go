package roce

import (
	"net/netip"
	"time"

	"softiser/rdma/internal/roce/packet"
	"softiser/rdma/internal/verbs"
)

// turn is how many packets are sent before somebody else has a turn: an answer to a READ
// may be 2 GiB long, and the goroutine that makes it may be the one that receives.
const turn = 64

// take takes one packet of the peer: the port's Handler.
func (qp *QP) take(_ netip.AddrPort, pkt *packet.Packet) {
	qp.Mu.Lock()
	defer qp.Mu.Unlock()
	if qp.Dying.Load() {
		return
	}
	qp.gotLocked(pkt)
	qp.noteECNLocked(pkt)
	switch {
	case pkt.Op == packet.CNP && qp.req.ReceiveCNP(qp.now()):
		qp.port.count.cnpHandled.Add(1)
		return
	case pkt.Op == packet.CNP:
		qp.port.count.cnpIgnored.Add(1)
		return
	case pkt.Op.Traits()&packet.Response != 0:
		qp.req.Receive(pkt, qp.now())
		return
	}
	qp.heard = qp.heard || pkt.Op.Service() == packet.RC
	qp.resp.Receive(pkt)
}

// batchEnd answers the packets that have come at once.
func (qp *QP) batchEnd() {
	qp.Mu.Lock()
	defer qp.Mu.Unlock()
	if !qp.Dying.Load() && !qp.delayAckLocked() {
		qp.settleLocked()
	}
}

// ackDelay is how long an acknowledgement may wait for a handler: a thousandth of the time
// that a peer waits for it.
const ackDelay = 500 * time.Microsecond

// delayAckLocked leaves an acknowledgement to the loop, if there is a handler to run for what
// it acknowledges: what the handler posts is sent with it, in one call, as one message of the
// kernel's. It is delayed once, until the next packets come or ackDelay is over.
func (qp *QP) delayAckLocked() bool {
	if qp.ackDelayed != 0 || !qp.told || qp.SQ.Next != qp.SQ.Tail || !qp.resp.Light() {
		return false
	}
	qp.publishLocked()
	if !qp.RecvCQ.Due() {
		return false
	}
	qp.ackDelayed = max(1, qp.now())
	qp.armLocked(qp.ackDelayed, qp.ackDelayed+ackDelay)
	qp.kick()
	return true
}

// armLocked has tick called at a time, or before.
func (qp *QP) armLocked(now, at time.Duration) {
	if qp.armed == 0 || at < qp.armed {
		qp.armed = at
		qp.timer.Reset(at - now)
	}
}

// tick does what is due by the clock. The timer is not set back when something has been
// done before its time, so there may be nothing.
func (qp *QP) tick() {
	qp.Mu.Lock()
	defer qp.Mu.Unlock()
	qp.armed = 0
	if qp.Dying.Load() {
		return
	}
	now := qp.now()
	at, ok := qp.req.Deadline()
	if due := qp.ackDelayed + ackDelay; qp.ackDelayed != 0 && (!ok || due < at) {
		at, ok = due, true
	}
	if ok && now < at {
		qp.armLocked(now, at)
		return
	}
	qp.req.Tick(now)
	qp.settleLocked()
}

func (qp *QP) now() time.Duration { return time.Since(qp.start) }

// settleLocked sends what there is to send, completes what has ended, and sees to what
// is due next. Preconditions: the queue pair is connected, and not dying.
func (qp *QP) settleLocked() {
	now := qp.now()
	qp.pumpLocked(now)
	qp.publishLocked()
	if !qp.more {
		qp.failedLocked()
	}
	if at, ok := qp.req.Deadline(); ok {
		qp.armLocked(now, at)
	}
	qp.wakeLocked(qp.drainedLocked())
}

// pumpLocked sends packets: answers first, as the peer waits for them with its window. But
// an acknowledgement alone goes last, where the kernel takes it for the short end of the
// message before.
func (qp *QP) pumpLocked(now time.Duration) {
	qp.more, qp.ackDelayed = false, 0
	cnp := qp.sendCNPLocked()
	n, light := 0, qp.resp.Light()
	if !light {
		n = qp.answerLocked(n)
	}
	for qp.open && n < turn && qp.req.Next(&qp.out, now) {
		if !qp.addLocked(false) {
			qp.req.Unreadable(&qp.out)
		}
		qp.out.Release()
		n++
	}
	qp.more = n == turn
	if light {
		n = qp.answerLocked(0)
	}
	if n > 0 || cnp {
		qp.flushLocked()
	}
}

// answerLocked adds packets of answers behind n others, and returns how many there are.
func (qp *QP) answerLocked(n int) int {
	for n < turn && qp.resp.Next(&qp.out) {
		// Copied, since the application may write to the memory that is read before the packet
		// is sent, and the ICRC would be wrong.
		if !qp.addLocked(true) {
			qp.resp.Unreadable(&qp.out)
		}
		qp.out.Release()
		n++
	}
	return n
}

// addLocked hands a packet to the sender; false when its payload cannot be read.
func (qp *QP) addLocked(copied bool) bool {
	o := &qp.out
	return qp.sendLocked(func() (bool, error) { return qp.send.Add(&o.Packet, o.Payload, o.N, copied) })
}

// flushLocked gives the packets to the kernel. What it does not take is lost, as on the
// network, and comes again; what it never will take ends the connection.
func (qp *QP) flushLocked() { qp.unsentLocked(qp.send.Flush()) }

// publishLocked completes the receives that have ended, and counts.
func (qp *QP) publishLocked() {
	if qp.wcs = qp.resp.TakeWCs(qp.wcs[:0]); len(qp.wcs) > 0 && !qp.RecvCQ.AddAll(qp.wcs) {
		qp.FailLocked(verbs.ErrOverflow)
	}
	qp.countLocked(qp.resp.Stats().Faults + qp.req.Stats().Faults)
	qp.reportLocked()
}
