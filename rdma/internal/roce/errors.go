package roce

import (
	"errors"
	"fmt"

	"softiser/rdma/internal/roce/packet"
	"softiser/rdma/internal/roce/rc"
	"softiser/rdma/internal/roce/udp"
	"softiser/rdma/internal/verbs"
)

// Refused is why a connection has ended of which one side has refused a request.
type Refused struct {
	*rc.Refused
	Remote bool // the peer has refused a request of ours; otherwise we have one of its
}

// Code is the code of the NAK. A key that the peer may not invalidate is acknowledged to
// it, and is an invalid request all the same.
func (r *Refused) Code() uint8 {
	s := r.Syndrome
	if !s.IsNAK() {
		s = packet.NAKInvalidRequest
	}
	return uint8(s - packet.NAKSequence)
}

// cause is err in words that say what to do, for a requester that got no answer.
func (qp *QP) cause(err error) error {
	var r *rc.Refused
	if errors.As(err, &r) {
		return &Refused{Refused: r, Remote: true}
	}
	if qp.unsent != nil && errors.Is(err, verbs.ErrTimeout) {
		return fmt.Errorf("%w; the last packet could not be sent: %w", err, qp.unsent)
	}
	return qp.port.explain(qp.Num, err)
}

// explain adds to a time-out why nothing is received for a queue pair, if that is known.
func (hp *hostPort) explain(qpn uint32, err error) error {
	if rerr := hp.RecvErr(qpn); rerr != nil && errors.Is(err, verbs.ErrTimeout) {
		return fmt.Errorf("%w; nothing can be received: %w", err, rerr)
	}
	return err
}

// fatal says whether an error of sending will not pass by itself.
func fatal(err error) bool {
	var long *udp.TooLongError
	return errors.As(err, &long)
}
