package initiator

import (
	"fmt"

	"softiser/internal/fsm"
)

// State is where a session is in its life.
//
//	            login ok            connection lost
//	Connecting ---------> Active -------------------> Recovering
//	    |                 |    ^                       |   |   |
//	    | refused         |    +-------- login ok -----+   |   | time over, or refused
//	    v           Close |    |                           |   | for a reason that stays
//	  Failed              v    |        Close              |   v
//	                   Closing | <-------------------------+  Failed, or with KeepTrying
//	                      |  ^ |                                 |
//	                      |  | +-------- login ok --------- Down-+
//	                      v  +------------ Close ------------+
//	                   Closed
type State uint8

// States of a session.
const (
	StateConnecting State = iota // first login in progress
	StateActive                  // commands flow
	StateRecovering              // connection lost; commands wait for the next login
	StateClosing                 // the caller closes it: outstanding commands end, then logout
	StateClosed
	StateFailed // given up
	StateDown   // as Recovering, but commands fail instead of waiting (Config.KeepTrying)
)

var stateNames = [...]string{"connecting", "active", "recovering", "closing", "closed", "failed", "down"}

// String returns the state's name.
func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return fmt.Sprintf("state %d", uint8(s))
}

// nextSession is the drawing of State.
var nextSession = fsm.Of([][]State{
	StateConnecting: {StateActive, StateFailed, StateClosed},
	StateActive:     {StateRecovering, StateClosing, StateFailed},
	StateRecovering: {StateActive, StateClosing, StateFailed, StateDown},
	StateClosing:    {StateClosed},
	StateClosed:     {},
	StateFailed:     {StateClosed},
	StateDown:       {StateActive, StateClosing},
})

// setState is the only place where the state changes. The caller holds s.mu.
func (s *Session) setState(to State) {
	if s.state != to && !nextSession.Has(s.state, to) {
		s.illegal("a session", s.state, to)
		return
	}
	s.state = to
	s.flowing.Store(to == StateActive)
}

// lostError is what requests end with after the session was given up.
func (s *Session) lostError() error { return fmt.Errorf("%w: %w", ErrSessionLost, s.err) }
