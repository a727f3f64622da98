package iscsi

import (
	"fmt"

	"softiser/internal/fsm"
)

// ConnState is the state of a datamover's connection:
//
//	ConnLogin ──Enable──▶ ConnFull ──┐
//	  │ └──Terminate(nil)────────────┴─▶ ConnClosing ──▶ ConnDead
//	  └──an error, the end of the stream─────(each)────────▶ │
//
// In ConnClosing what is queued still goes out and what arrives is dropped.
type ConnState uint8

// States.
const (
	ConnLogin ConnState = iota
	ConnFull
	ConnClosing
	ConnDead
)

// nextConn is the drawing as a table.
var nextConn = fsm.Of([][]ConnState{
	ConnLogin:   {ConnFull, ConnClosing, ConnDead},
	ConnFull:    {ConnClosing, ConnDead},
	ConnClosing: {ConnDead},
	ConnDead:    {},
})

// MayBecome reports whether the table has the transition; to stay is none.
func (s ConnState) MayBecome(to ConnState) bool { return s == to || nextConn.Has(s, to) }

var connNames = [...]string{"login", "full feature", "closing", "dead"}

// String names the state.
func (s ConnState) String() string {
	if int(s) < len(connNames) {
		return connNames[s]
	}
	return fmt.Sprintf("ConnState(%d)", uint8(s))
}
