package roce

import (
	"time"

	"softiser/rdma/internal/roce/rc"
)

// State is what a connection is doing.
type State struct {
	Window   int           // packets that it may have in flight
	RTT      time.Duration // smoothed; 0: not measured yet
	Requests rc.RequesterStats
	Answers  rc.Stats
}

// State returns it; false before there is a connection.
func (qp *QP) State() (State, bool) {
	qp.Mu.Lock()
	defer qp.Mu.Unlock()
	if qp.req == nil {
		return State{}, false
	}
	return State{qp.req.Window(), qp.req.RTT(), qp.req.Stats(), qp.resp.Stats()}, true
}
