package blockio

import (
	"fmt"
	"time"

	"github.com/dustin/go-humanize/english"
)

// EventLine is what the events of every wire say alike.
type EventLine struct {
	Target, Address string        // IQN or NQN, and the portal
	Kind            fmt.Stringer  // what has happened
	Detail          string        // for people
	Err             error         // why
	Down            time.Duration // since the connection was lost
	Wait            time.Duration // until the next attempt
	Recovered       bool          // Replayed counts, even if it is 0
	Replayed        int           // commands that were sent again
}

// String returns one line for people.
func (l EventLine) String() string {
	s := fmt.Sprintf("%s at %s: %s", l.Target, l.Address, l.Kind)
	if l.Detail != "" {
		s += ": " + l.Detail
	}
	if l.Err != nil {
		s += ": " + l.Err.Error()
	}
	if l.Down > 0 {
		s += fmt.Sprintf(" (down for %s)", l.Down.Round(time.Millisecond))
	}
	if l.Wait > 0 {
		s += fmt.Sprintf(", next attempt in %s", l.Wait.Round(time.Millisecond))
	}
	if l.Recovered {
		s += fmt.Sprintf(", %s replayed", english.Plural(int(l.Replayed), "command", ""))
	}
	return s
}
