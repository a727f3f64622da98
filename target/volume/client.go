package volume

// Registrant names who has a registration, across connections and restarts: an
// initiator as it is seen through a port of a target. For SCSI that is an I_T nexus
// (initiator port, target, relative target port), for NVMe a host (host NQN and
// identifier, subsystem, 0).
type Registrant struct {
	Initiator string `json:"initiator_port"`
	// Target is "" in what versions before several targets could serve a volume have
	// saved: the first target that serves the volume takes it over, see Adopt.
	Target string `json:"target,omitempty"`
	Port   uint16 `json:"target_port"`
}

// Client is the sender of commands: a registrant as long as it is connected. Commands and events name
// clients by their address.
type Client struct {
	ID Registrant
	// User is who the initiator has proved to be; "" without authentication. Its
	// registrations remember it.
	User string
	// Holder is on whose account its writes have staging memory.
	Holder Holder
}

// Face is what serves a volume at one place: a LUN of a target, a namespace.
type Face interface {
	// Notify tells of something that initiators at this place may have to learn. It is
	// called without locks, on any goroutine, and must not wait.
	Notify(Event)
	// Left is called once, when the last command of the place has ended after its
	// removal, and the volume does not know it any more.
	Left()
}

// Event is something that happened to a volume.
type Event struct {
	Kind EventKind
	// Who tells whom it concerns; nil: every client of every place.
	Who func(*Client) bool
	// Group is the portal group of PathChanged.
	Group uint16
}

// EventKind is the kind of an event.
type EventKind uint8

// Events.
const (
	GeometryChanged       EventKind = iota // size, or what the device can do
	SpaceLow                               // a threshold was reached, or the device says so
	ReservationReleased                    // somebody else has ended a reservation under which they had access, or given it another type
	ReservationPreempted                   // all registrations are gone
	RegistrationPreempted                  // theirs is gone
	ProtectionChanged                      // Protected has been set or lifted
	PathChanged                            // how the volume is reached through Event.Group
	RewriteEnded                           // a sanitize or a format has ended, well or not
	StateRestored                          // what is kept has been read anew, see Activate
)

// Access is what a command does as far as reservations are concerned.
type Access uint8

// Access classes.
const (
	Always Access = iota // never in conflict
	Reads                // reads the medium, or what is nobody else's business under exclusive access
	Writes               // changes the medium or how it is used
)

// gates are those that keep a command of the class from the medium.
func (a Access) gates() Gate {
	if a == Writes {
		return WriteGates
	}
	return MediumGates
}
