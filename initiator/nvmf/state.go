package nvmf

import (
	"fmt"

	"softiser/internal/fsm"
)

// An association changes its state in toLocked alone, requests and commands in moveRequestLocked and
// moveCommandLocked; these go by the drawings as tables.

// State is where an association is.
//
//	Connecting ──▶ Live ◀──▶ Reconnecting ──▶ Down ──▶ Live
//	                 └──────────┴──────────────┴──▶ Failed
//	                 └──────────┴──────────────┴──▶ Closed
//
// One that is connecting, or has failed, may be closed, too.
type State uint8

// States.
const (
	StateConnecting   State = iota
	StateLive               // commands flow
	StateReconnecting       // commands wait
	StateDown               // commands fail; the controller is still looked for
	StateFailed             // given up
	StateClosed
)

var stateNames = [...]string{"connecting", "live", "reconnecting", "down", "failed", "closed"}

// String names the state.
func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return fmt.Sprintf("State(%d)", uint8(s))
}

// nextStates is the drawing as a table.
var nextStates = fsm.Of([][]State{
	StateConnecting:   {StateLive, StateClosed},
	StateLive:         {StateReconnecting, StateFailed, StateClosed},
	StateReconnecting: {StateLive, StateDown, StateFailed, StateClosed},
	StateDown:         {StateLive, StateFailed, StateClosed},
	StateFailed:       {StateClosed},
	StateClosed:       {},
})

// reqState tells where a request is.
//
//	idle --Submit--> queued --its last command starts--> running --last command ends--> idle
//	                   ^----- a flush follows, or the data once more ----/
//
// One that is queued becomes idle when it fails before its last command has started.
type reqState uint8

const (
	reqIdle reqState = iota
	reqQueued
	reqRunning
)

// cmdState tells where a command is.
//
//	free -> sent -> free
//	         |  ^
//	         v  |
//	       delayed -> resend        sent -> resend, when the association is lost
//
// Those that wait to be sent again become free when they are given up.
type cmdState uint8

const (
	cmdFree cmdState = iota
	cmdSent
	cmdDelayed
	cmdResend
)

// nextRequest and nextCommand are the drawings as tables.
var (
	nextRequest = fsm.Of([][]reqState{
		reqIdle:    {reqQueued},
		reqQueued:  {reqRunning, reqIdle},
		reqRunning: {reqIdle, reqQueued},
	})
	nextCommand = fsm.Of([][]cmdState{
		cmdFree:    {cmdSent},
		cmdSent:    {cmdFree, cmdDelayed, cmdResend},
		cmdDelayed: {cmdFree, cmdResend},
		cmdResend:  {cmdFree, cmdSent},
	})
)

// moveRequestLocked is the only writer of a request's state; to stay is no transition.
func (q *queue) moveRequestLocked(r *request, s reqState) {
	if r.state != s && !nextRequest.Has(r.state, s) {
		q.impossibleLocked("a request", r.state, s)
	}
	r.state = s
}

// moveCommandLocked is the only writer of a command's state; to stay is no transition.
func (q *queue) moveCommandLocked(c *command, s cmdState) {
	if c.state != s && !nextCommand.Has(c.state, s) {
		q.impossibleLocked("a command", c.state, s)
	}
	c.state = s
}

// impossibleLocked notes a transition that the table does not have, which is a mistake of ours.
// The connection ends, and what was on its way is begun anew or fails, as after a loss.
func (q *queue) impossibleLocked(what string, from, to any) {
	err := fsm.Illegal("nvmf", what, from, to)
	if tr := q.tr; tr != nil {
		go tr.Terminate(err)
	}
}
