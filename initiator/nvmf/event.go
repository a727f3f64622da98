package nvmf

import (
	"fmt"
	"time"

	"softiser/initiator/blockio"
)

// EventKind says what an Event reports.
type EventKind uint8

// Kinds of events.
const (
	EventConnected     EventKind = iota // an association was made for the first time
	EventLost                           // it was lost; Err says why
	EventRetry                          // an attempt to make it again failed; Wait says when the next one follows
	EventRecovered                      // made again, outstanding commands replayed
	EventDown                           // commands fail from now on; the controller is still looked for
	EventFailed                         // given up; Err says why
	EventClosed                         // closed by the caller
	EventAsync                          // the controller has told something
	EventResized                        // the size of a namespace has changed
	EventDiscovery                      // the discovery log has changed
	EventAborted                        // a command was aborted; Err says why. Not where its caller has cancelled it
	EventAuthenticated                  // both ends have proved again who they are
	EventUnproved                       // they have not; the association ends
	EventCacheLost                      // the controller may have lost acknowledged writes; the next flush fails
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
	EventDown:          {"down, trying on", true},
	EventFailed:        {"given up", true},
	EventClosed:        {"closed", false},
	EventAsync:         {"asynchronous event", false},
	EventResized:       {"resized", false},
	EventDiscovery:     {"discovery log changed", false},
	EventAborted:       {"command aborted", true},
	EventAuthenticated: {"authenticated again", false},
	EventUnproved:      {"authentication failed", true},
	EventCacheLost:     {"writes may be lost", true},
}

// String returns a short name.
func (k EventKind) String() string {
	if int(k) < len(kinds) {
		return kinds[k].name
	}
	return fmt.Sprintf("EventKind(%d)", uint8(k))
}

// Trouble reports whether the event is a fault, or the end of one.
func (k EventKind) Trouble() bool { return int(k) < len(kinds) && kinds[k].trouble }

// Event is one thing worth a log line. Nothing is reported per command that succeeds.
type Event struct {
	Kind      EventKind
	Subsystem string
	Address   string
	Err       error
	Detail    string        // for people
	Wait      time.Duration // EventRetry: until the next attempt
	Down      time.Duration // EventRecovered, EventRetry: since the loss
	Replayed  int           // EventRecovered: commands sent again
}

// String returns one line for people.
func (e Event) String() string {
	return blockio.EventLine{
		Target: e.Subsystem, Address: e.Address, Kind: e.Kind, Detail: e.Detail, Err: e.Err,
		Down: e.Down, Wait: e.Wait, Recovered: e.Kind == EventRecovered, Replayed: e.Replayed,
	}.String()
}

// event reports e.
func (a *Association) event(e Event) {
	a.mu.Lock()
	a.noteLocked(e)
	a.mu.Unlock()
	a.events.Tell()
}

// noteLocked has a.events.Tell report e. A new state is noted under the lock under which it came
// about, so that states are told in their order.
func (a *Association) noteLocked(e Event) {
	e.Subsystem, e.Address = a.cfg.Subsystem, a.cfg.Address
	if a.announcing {
		a.behind = append(a.behind, e)
		return
	}
	a.events.Put(e)
}

// announce reports e, which says that the association is live, and what has come about since it
// is.
func (a *Association) announce(e Event) {
	a.mu.Lock()
	behind := a.behind
	a.announcing, a.behind = false, nil
	a.noteLocked(e)
	for _, e := range behind {
		a.noteLocked(e)
	}
	a.mu.Unlock()
	a.events.Tell()
}
