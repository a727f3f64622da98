package cm

import (
	"fmt"

	"softiser/internal/fsm"
)

// State is the state of a connection (IBA vol. 1 §12.9.7, without what alternate paths
// and enhanced establishment add).
//
//	active:   Idle ─► ReqSent ─► RepReceived ─► Established ─► DreqSent ─► TimeWait ─► Gone
//	                     │             │           ▲    └── DREQ came ────────▲  ▲
//	passive:  Idle ─► ReqReceived ─► RepSent ──────┘           │               │  │
//	                     │             │  └───────── DREQ came, or Disconnect ─┘  │
//	                     └─────────────┴── REJ sent or received, silence ────► Gone
type State uint8

// States.
const (
	Idle State = iota
	ReqSent
	RepReceived
	ReqReceived
	RepSent
	Established
	DreqSent
	TimeWait
	Gone
)

var stateNames = [...]string{"Idle", "ReqSent", "RepReceived", "ReqReceived", "RepSent", "Established", "DreqSent", "TimeWait", "Gone"}

// String names the state.
func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return fmt.Sprintf("State(%d)", uint8(s))
}

// nextStates is the drawing as a table.
var nextStates = fsm.Of([][]State{
	Idle:        {ReqSent, ReqReceived},
	ReqSent:     {RepReceived, Gone},
	RepReceived: {Established, Gone},
	ReqReceived: {RepSent, Gone},
	RepSent:     {Established, DreqSent, TimeWait, Gone},
	Established: {DreqSent, TimeWait, Gone},
	DreqSent:    {TimeWait, Gone},
	TimeWait:    {Gone},
	Gone:        {},
})

// setState is the only writer of the state; a transition that the table does not have
// is a mistake in this package. Preconditions: m.mu is held.
func (c *Conn) setState(to State) {
	if !nextStates.Has(c.state, to) {
		panic(fsm.Illegal("rdma", "a connection", c.state, to))
	}
	if c.state == ReqReceived || c.state == RepSent {
		if to != RepSent {
			c.m.pendingLess(c)
		}
	}
	c.state = to
}
