package rdma

import "softiser/rdma/internal/verbs"

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
type QPState = verbs.State

// States.
const (
	StateIdle      QPState = verbs.StateIdle
	StateRTS       QPState = verbs.StateRTS
	StateClosing   QPState = verbs.StateClosing
	StateTerminate QPState = verbs.StateTerminate
	StateError     QPState = verbs.StateError
)

// Event is something that happens to a queue pair other than a completion.
type Event = verbs.Event

// Events.
const (
	EventEstablished  Event = verbs.EventEstablished  // responder: the first FPDU has arrived
	EventDisconnected Event = verbs.EventDisconnected // the connection has ended and everything is flushed
	EventSRQLimit     Event = verbs.EventSRQLimit     // fewer buffers than armed are left in the shared receive queue
)
