package initiator

import (
	"fmt"
	"time"

	"softiser/initiator/blockio"
)

// EventKind says what an Event reports.
type EventKind uint8

// Kinds of events.
const (
	EventConnected     EventKind = iota // logged in for the first time
	EventLost                           // connection lost; Err says why
	EventRetry                          // an attempt to log in again failed; Wait says when the next one follows
	EventRecovered                      // logged in again, outstanding commands replayed
	EventFailed                         // session given up; Err says why
	EventClosed                         // closed by the caller
	EventFallback                       // iSER was not possible, TCP is used
	EventAsync                          // the target sent an asynchronous message
	EventUnitAttention                  // a unit attention was taken
	EventResized                        // the capacity of a LUN has changed
	EventAborted                        // a command was aborted; Err says why. Not where its caller has cancelled it
	EventLUNReset                       // a LUN was reset after an abort had failed
	EventCacheLost                      // the target may have lost acknowledged writes; the next flush fails
	EventDown                           // commands fail from now on, the target is still looked for; Err says why
	EventAccess                         // the target says that the access state of a path has changed
)

// kinds is what is said of each kind of event.
var kinds = [...]struct {
	name    string
	trouble bool
}{
	EventConnected:     {"connected", false},
	EventLost:          {"connection lost", true},
	EventRetry:         {"reconnect failed", true},
	EventRecovered:     {"recovered", true},
	EventFailed:        {"given up", true},
	EventClosed:        {"closed", false},
	EventFallback:      {"fell back to TCP", false},
	EventAsync:         {"asynchronous message", false},
	EventUnitAttention: {"unit attention", false},
	EventResized:       {"resized", false},
	EventAborted:       {"command aborted", true},
	EventLUNReset:      {"LUN reset", true},
	EventCacheLost:     {"writes may be lost", true},
	EventDown:          {"down, trying on", true},
	EventAccess:        {"access state changed", false},
}

// String returns a short name.
func (k EventKind) String() string {
	if int(k) < len(kinds) {
		return kinds[k].name
	}
	return fmt.Sprintf("event %d", uint8(k))
}

// Trouble reports whether the event is a fault, or the end of one.
func (k EventKind) Trouble() bool { return int(k) < len(kinds) && kinds[k].trouble }

// Event is one thing worth a log line. Nothing is reported per command that
// succeeds.
type Event struct {
	Kind     EventKind
	Target   string        // IQN
	Address  string        // host:port
	Err      error         // reason, where there is one
	Detail   string        // for people
	Wait     time.Duration // EventRetry: until the next attempt
	Down     time.Duration // EventRecovered, EventRetry: since the loss
	Replayed int           // EventRecovered: commands sent again
}

// String returns one line for people.
func (e Event) String() string {
	return blockio.EventLine{
		Target: e.Target, Address: e.Address, Kind: e.Kind, Detail: e.Detail, Err: e.Err,
		Down: e.Down, Wait: e.Wait, Recovered: e.Kind == EventRecovered, Replayed: e.Replayed,
	}.String()
}
