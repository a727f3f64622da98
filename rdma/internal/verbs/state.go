package verbs

import (
	"fmt"

	"softiser/internal/fsm"
)

// State is the state of a queue pair; package rdma has the drawing.
type State uint8

// States.
const (
	StateIdle State = iota
	StateRTS
	StateClosing
	StateTerminate
	StateError
)

// nextStates is the drawing as a table. Idle goes to Error when a queue pair without a
// connection is closed.
var nextStates = fsm.Of([][]State{
	StateIdle:      {StateRTS, StateError},
	StateRTS:       {StateClosing, StateTerminate, StateError},
	StateClosing:   {StateTerminate, StateError},
	StateTerminate: {StateError},
	StateError:     {},
})

// mayBecome reports whether the table has the transition; to stay is none.
func (s State) mayBecome(to State) bool { return s == to || nextStates.Has(s, to) }

var stateNames = [...]string{"Idle", "RTS", "Closing", "Terminate", "Error"}

// String names the state.
func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return fmt.Sprintf("QPState(%d)", uint8(s))
}

// Event is something that happens to a queue pair other than a completion.
type Event uint8

// Events.
const (
	EventEstablished Event = iota + 1
	EventDisconnected
	EventSRQLimit
)

// String says it in words.
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

// SetState is the only writer of the state. A transition that the table does not have
// is a mistake of ours; it ends the queue pair. The result is the hook call to make
// when no lock is held. Preconditions: qp.Mu is held.
func (qp *QP) SetState(to State) func() {
	from := qp.state
	if !from.mayBecome(to) {
		qp.FailLocked(fsm.Illegal("rdma", fmt.Sprintf("queue pair %d", qp.Num), from, to))
		return func() {}
	}
	qp.state = to
	if from != to {
		return qp.owner.StateChanged(from, to)
	}
	return func() {}
}

// StateLocked is the state. Preconditions: qp.Mu is held.
func (qp *QP) StateLocked() State { return qp.state }

// State is the state.
func (qp *QP) State() State {
	qp.Mu.Lock()
	defer qp.Mu.Unlock()
	return qp.state
}
