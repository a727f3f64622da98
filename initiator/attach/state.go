package attach

import (
	"fmt"
	"time"

	"softiser/initiator"
	"softiser/initiator/blockio"
	"softiser/initiator/multipath"
)

// States of the way to the target besides those that say how much of it is there.
const (
	stateConnected = "connected"
	// No way leads there:
	stateDown         = "down"
	stateNoPath       = "no path"
	stateReconnecting = "reconnecting"
)

// away reports whether no way leads to the target in that state.
func away(state string) bool {
	return state == stateDown || state == stateNoPath || state == stateReconnecting
}

// stateOf says how the way to an attached volume is, and why it is not as it should be.
func stateOf(v blockio.Volume) (state, reason string) {
	switch v := v.(type) {
	case *initiator.LUN:
		return stateOfSessions(v.Sessions())
	case *multipath.Volume:
		return stateOfPaths(v.Paths())
	}
	return stateConnected, ""
}

// time2Wait is the longest that a session of a volume has agreed on.
func time2Wait(v blockio.Volume) (longest time.Duration) {
	s, ok := v.(interface{ Sessions() []*initiator.Session })
	if !ok {
		return 0
	}
	for _, x := range s.Sessions() {
		longest = max(longest, time.Duration(x.Info().Time2Wait)*time.Second)
	}
	return longest
}

func stateOfPaths(paths []multipath.Status) (state, reason string) {
	active, up := 0, 0
	for _, p := range paths {
		if p.Active {
			active++
		}
		if p.Reason == "" {
			up++
		} else {
			reason = p.URL + ": " + p.Reason
		}
	}
	switch n := len(paths); {
	case active == 0:
		return stateNoPath, reason
	case up < n:
		return fmt.Sprintf("%d of %d paths connected", up, n), reason
	}
	return stateConnected, ""
}

func stateOfSessions(sessions []*initiator.Session) (state, reason string) {
	up, down := 0, 0
	for _, s := range sessions {
		st, err := s.State()
		switch st {
		case initiator.StateActive:
			up++
			continue
		case initiator.StateDown, initiator.StateFailed:
			down++
		}
		if err != nil {
			reason = err.Error()
		}
	}
	switch n := len(sessions); {
	case up == n:
		return stateConnected, ""
	case up > 0:
		return fmt.Sprintf("%d of %d sessions connected", up, n), reason
	case down == n:
		return stateDown, reason
	}
	return stateReconnecting, reason
}
