package verbs

import (
	"fmt"
	"time"
)

// drainTimeout is how long nothing may move between a graceful close and its end.
const drainTimeout = 10 * time.Second

// WatchDrainLocked has a graceful close end once moved, which grows with whatever the peer takes or
// answers, stands still for ten seconds; not when over says that what was queued before has been done. A
// peer that says and takes nothing would keep the connection for ever. why begins the error's reason.
// The result is to be stopped when the connection ends. Preconditions: qp.Mu is held, as it is when moved and
// over are called.
func (qp *QP) WatchDrainLocked(moved func() uint64, over func() bool, why string) *time.Timer {
	before := moved()
	var t *time.Timer
	t = time.AfterFunc(drainTimeout, func() {
		qp.Mu.Lock()
		defer qp.Mu.Unlock()
		switch now := moved(); {
		case over() || qp.Dying.Load():
		case now == before:
			qp.FailLocked(fmt.Errorf("%w: %s for %v, and what was queued before the end is not done", ErrTimeout, why, drainTimeout))
		default:
			before = now
			t.Reset(drainTimeout)
		}
	})
	return t
}
