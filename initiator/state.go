package initiator

import "fmt"

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

// moves is a state machine's drawing as a table: for each state the set of those that may
// follow it. To stay is no move.
type moves[S ~uint8] []uint16

// after makes the table of one row per state, with the states that may follow.
func after[S ~uint8](rows ...[]S) moves[S] {
	m := make(moves[S], len(rows))
	for from, row := range rows {
		for _, to := range row {
			m[from] |= 1 << to
		}
	}
	return m
}

func (m moves[S]) legal(from, to S) bool { return from == to || m[from]>>to&1 != 0 }

// badTransition is told of a transition that a table does not have. Tests make it panic.
var badTransition = func(error) {}

// nextSession is the drawing of State.
var nextSession = after([][]State{
	StateConnecting: {StateActive, StateFailed, StateClosed},
	StateActive:     {StateRecovering, StateClosing, StateFailed},
	StateRecovering: {StateActive, StateClosing, StateFailed, StateDown},
	StateClosing:    {StateClosed},
	StateClosed:     {},
	StateFailed:     {StateClosed},
	StateDown:       {StateActive, StateClosing},
}...)

// setState is the only place where the state changes. The caller holds s.mu.
func (s *Session) setState(to State) {
	if !nextSession.legal(s.state, to) {
		s.illegal("session", s.state, to)
		return
	}
	s.state = to
	s.flowing.Store(to == StateActive)
}

// illegal takes a transition that its table does not have: a mistake of ours, which ends
// the connection, so that recovery begins anew. The caller holds s.mu.
func (s *Session) illegal(what string, from, to fmt.Stringer) {
	err := fmt.Errorf("initiator: internal error: a %s cannot go from %v to %v", what, from, to)
	badTransition(err)
	if c := s.conn; c != nil {
		c.doom(err)
	}
}
