package nvmf

import "fmt"

// Requests and commands change their states in moveRequest and moveCommand alone, which go
// by the drawings as tables; that of an association is at its type. Queue.mu is held.

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

// nextRequest and nextCommand are the drawings, a bit for each state that may follow.
var (
	nextRequest = [...]uint8{
		reqIdle:    1 << reqQueued,
		reqQueued:  1<<reqRunning | 1<<reqIdle,
		reqRunning: 1<<reqIdle | 1<<reqQueued,
	}
	nextCommand = [...]uint8{
		cmdFree:    1 << cmdSent,
		cmdSent:    1<<cmdFree | 1<<cmdDelayed | 1<<cmdResend,
		cmdDelayed: 1<<cmdFree | 1<<cmdResend,
		cmdResend:  1<<cmdFree | 1<<cmdSent,
	}
)

// badTransition is told of a transition that a table does not have. Tests make it panic.
var badTransition = func(error) {}

// moveRequest is the only writer of a request's state; to stay is no transition.
func (q *queue) moveRequest(r *request, s reqState) {
	if r.state != s && nextRequest[r.state]>>s&1 == 0 {
		q.impossible("request", uint8(r.state), uint8(s))
	}
	r.state = s
}

// moveCommand is the only writer of a command's state; to stay is no transition.
func (q *queue) moveCommand(c *command, s cmdState) {
	if c.state != s && nextCommand[c.state]>>s&1 == 0 {
		q.impossible("command", uint8(c.state), uint8(s))
	}
	c.state = s
}

// impossible notes a transition that the table does not have, which is a mistake of ours.
// The connection ends, and what was on its way is begun anew or fails, as after a loss.
func (q *queue) impossible(what string, from, to uint8) {
	err := fmt.Errorf("nvmf: internal error: a %s cannot go from state %d to %d", what, from, to)
	badTransition(err)
	if tr := q.tr; tr != nil {
		go tr.Terminate(err)
	}
}
