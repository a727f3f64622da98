package iwarp

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"softiser/rdma/internal/verbs"
)

// parking is the wish that a queue pair is parked.
type parking struct {
	may     func() bool // asked between two messages, without locks
	changed func()      // there is reason to ask Still again; called with locks held
	resumed func()      // called by the receiver, without locks, when the parking has ended; or nil
	stands  bool        // the receiver waits; guarded by QP.Mu
}

// halt is where that wish is kept.
type halt struct {
	wish  atomic.Pointer[parking] // nil: there is none; written under QP.Mu
	moved sync.Cond               // there is reason for the receiver not to wait any more; on QP.Mu
	over  func()                  // resumed of a parking that has ended, until the receiver has called it; guarded by QP.Mu
}

// errParked ends the reading between two messages.
var errParked = errors.New("rdma: the queue pair is to be parked")

// passed is a deadline that ends waiting at once.
var passed = time.Unix(1, 0)

// tellLocked makes whoever has parked the queue pair ask Still again.
func (h *halt) tellLocked() {
	if p := h.wish.Load(); p != nil {
		p.changed()
	}
}

// goOnLocked makes a receiver that waits look whether it is to read on.
func (h *halt) goOnLocked() {
	if h.wish.Load() != nil {
		h.moved.Broadcast()
	}
}

// livesLocked reports whether the connection is there, and not about to end.
func (qp *QP) livesLocked() bool { return qp.StateLocked() == verbs.StateRTS && !qp.Dying.Load() }

// heldUpLocked reports whether the receiver is to wait for the end of p.
func (qp *QP) heldUpLocked(p *parking) bool {
	return qp.halt.wish.Load() == p && qp.livesLocked() && qp.reads.inFlight() == 0 && len(qp.zc.calls) == 0
}
