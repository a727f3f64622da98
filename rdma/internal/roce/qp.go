package roce

import (
	"net/netip"
	"time"

	"softiser/rdma/internal/roce/rc"
	"softiser/rdma/internal/verbs"
)

// QP is the engine of one queue pair of the type RC.
type QP struct {
	base

	// Guarded by Mu, from the connection on.
	req      *rc.Requester
	resp     *rc.Responder
	peer     netip.Addr
	start    time.Time // of the clock of req, which shares its paths with others of the port
	timer    *time.Timer
	armed    time.Duration // when timer runs out; 0: it does not run
	reported reported      // what the counters of the port have of the machines

	ackDelayed time.Duration // since when an acknowledgement waits for the loop to send it; 0: none does
}

// NewRC makes the engine of a queue pair of the type RC that is not connected, and makes
// itself known to it. The number of the queue pair comes from here.
func NewRC(d *Device, v *verbs.QP) error {
	qp := &QP{}
	if err := qp.init(d, v, qp); err != nil {
		return err
	}
	v.Engine = qp
	return nil
}

// Reads is the number of Reads and atomics in flight; see verbs.Engine.
func (qp *QP) Reads() int {
	if qp.req == nil {
		return 0
	}
	return qp.req.Reads()
}
