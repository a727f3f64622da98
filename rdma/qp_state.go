package rdma

import (
	"fmt"
	"slices"
)

// QPState is the state of a queue pair.
//
//	         Dial, Client, Accept
//	Idle ---------------------------> RTS
//	                                 / | \
//	                   Disconnect() /  |  \ error found here, or
//	                               v   |   v Terminate received
//	                         Closing   |  Terminate
//	     queue drained, FIN,       \   |   /   Terminate and FIN sent,
//	     peer's FIN or time-out     v  v  v    everything flushed
//	                                 Error        <-- FIN, reset, Abort
//
// Error is final: whatever is posted then completes at once as flushed.
type QPState uint8

// States.
const (
	StateIdle QPState = iota
	StateRTS
	StateClosing
	StateTerminate
	StateError
)

// nextStates is the drawing as a table. Idle goes to Error when a queue pair without a
// connection is closed.
var nextStates = [...][]QPState{
	StateIdle:      {StateRTS, StateError},
	StateRTS:       {StateClosing, StateTerminate, StateError},
	StateClosing:   {StateTerminate, StateError},
	StateTerminate: {StateError},
	StateError:     {},
}

// mayBecome reports whether the table has the transition; to stay is none.
func (s QPState) mayBecome(to QPState) bool { return s == to || slices.Contains(nextStates[s], to) }

var stateNames = [...]string{"Idle", "RTS", "Closing", "Terminate", "Error"}

func (s QPState) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return fmt.Sprintf("QPState(%d)", uint8(s))
}

// Event is something that happens to a queue pair other than a completion.
type Event uint8

// Events.
const (
	EventEstablished  Event = iota + 1 // responder: the first FPDU has arrived
	EventDisconnected                  // the connection has ended and everything is flushed
	EventSRQLimit                      // fewer buffers than armed are left in the shared receive queue
)

func (e Event) String() string {
	switch e {
	case EventEstablished:
		return "established"
	case EventDisconnected:
		return "disconnected"
	case EventSRQLimit:
		return "shared receive queue limit reached"
	}
	return fmt.Sprintf("Event(%d)", uint8(e))
}

// badTransition is told of a transition that the table does not have. Tests make it
// panic.
var badTransition = func(error) {}

// setState is the only writer of qp.state. A transition that the table does not have
// is a mistake of ours; it ends the queue pair. The result is the hook call to make
// when no lock is held. Preconditions: qp.sqMu is held.
func (qp *QP) setState(to QPState) func() {
	from := qp.state
	if !from.mayBecome(to) {
		err := fmt.Errorf("rdma: internal error: queue pair %d cannot go from %v to %v", qp.num, from, to)
		badTransition(err)
		qp.failLocked(err)
		return func() {}
	}
	qp.state = to
	if f := qp.dev.cfg.Hooks.StateChange; f != nil && from != to {
		return func() { f(qp, from, to) }
	}
	return func() {}
}

// State returns the state of the queue pair.
func (qp *QP) State() QPState {
	qp.sqMu.Lock()
	defer qp.sqMu.Unlock()
	return qp.state
}
