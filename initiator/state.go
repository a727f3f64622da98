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

// legal lists the states that may follow each state.
var legal = [...][]State{
	StateConnecting: {StateActive, StateFailed, StateClosed},
	StateActive:     {StateRecovering, StateClosing, StateFailed},
	StateRecovering: {StateActive, StateClosing, StateFailed, StateDown},
	StateDown:       {StateActive, StateClosing},
	StateClosing:    {StateClosed},
	StateClosed:     {},
	StateFailed:     {StateClosed},
}

// setState is the only place where the state changes; whoever waits for a
// change wakes up. The caller holds s.mu.
func (s *Session) setState(to State) {
	ok := false
	for _, l := range legal[s.state] {
		ok = ok || l == to
	}
	if !ok {
		panic(fmt.Sprintf("initiator: session goes from %v to %v", s.state, to))
	}
	s.state = to
	s.flowing.Store(to == StateActive)
	close(s.changed)
	s.changed = make(chan struct{})
}
