package nvme

import "fmt"

// FeatureID names a feature of a controller or namespace.
type FeatureID uint8

// Features.
const (
	FeatureArbitration    FeatureID = 0x01
	FeaturePower          FeatureID = 0x02
	FeatureTemperature    FeatureID = 0x04
	FeatureErrorRecovery  FeatureID = 0x05
	FeatureWriteCache     FeatureID = 0x06
	FeatureQueues         FeatureID = 0x07
	FeatureCoalescing     FeatureID = 0x08
	FeatureVector         FeatureID = 0x09
	FeatureWriteAtomicity FeatureID = 0x0A
	FeatureAsyncEvents    FeatureID = 0x0B
	FeatureTimestamp      FeatureID = 0x0E
	FeatureKeepAlive      FeatureID = 0x0F
	FeatureHostBehavior   FeatureID = 0x16
	FeatureHostID         FeatureID = 0x81
	FeatureResvMask       FeatureID = 0x82
	FeatureResvPersist    FeatureID = 0x83
	FeatureWriteProtect   FeatureID = 0x84
)

// Select says which value of a feature Get Features asks for.
type Select uint8

// Values of a feature.
const (
	SelectCurrent   Select = 0
	SelectDefault   Select = 1
	SelectSaved     Select = 2
	SelectSupported Select = 3
)

// Features is the view of Get Features and Set Features.
//
//	  +-------------+-----+-----------------------------------+
//	40| feature     | SEL |              ...              |SV |
//	44| value, as the feature defines it                      |
//	  +-------------------------------------------------------+
type Features struct{ *SQE }

// Features views s as Get Features or Set Features.
func (s *SQE) Features() Features { return Features{s} }

// NewGetFeatures clears s and makes it ask for the current value of a feature.
func (s *SQE) NewGetFeatures(id FeatureID, nsid uint32) Features {
	s.Init(AdminGetFeatures, nsid)
	s[40] = byte(id)
	return Features{s}
}

// NewSetFeatures clears s and makes it set a feature.
func (s *SQE) NewSetFeatures(id FeatureID, nsid, value uint32) Features {
	s.Init(AdminSetFeatures, nsid)
	s[40] = byte(id)
	s.SetCDW(11, value)
	return Features{s}
}

// ID returns which feature it is.
func (c Features) ID() FeatureID { return FeatureID(c.SQE[40]) }

// Select returns which value is asked for.
func (c Features) Select() Select { return Select(c.SQE[41] & 7) }

// Save reports whether the value is to be kept through power loss.
func (c Features) Save() bool { return c.CDW(10)>>31 != 0 }

// Value returns the value to be set.
func (c Features) Value() uint32 { return c.CDW(11) }

// QueueCounts is the value of the feature Number of Queues, and its result: how
// many I/O submission and completion queues there are.
func QueueCounts(submission, completion int) uint32 {
	return uint32(submission-1)&0xFFFF | uint32(completion-1)<<16
}

// ParseQueueCounts is the inverse of [QueueCounts].
func ParseQueueCounts(v uint32) (submission, completion int) {
	return int(v&0xFFFF) + 1, int(v>>16) + 1
}

// Bits of the reservation notification mask: these are not told.
const (
	ResvMaskRegistrationPreempted uint32 = 1 << 1
	ResvMaskReleased              uint32 = 1 << 2
	ResvMaskPreempted             uint32 = 1 << 3
)

// EventKind is the type of an asynchronous event.
type EventKind uint8

// Types of events.
const (
	EventError  EventKind = 0
	EventSMART  EventKind = 1
	EventNotice EventKind = 2
	EventIO     EventKind = 6 // of the I/O command set
)

// Event is an asynchronous event, dword 0 of the completion that reports it.
//
//	31      24 23      16 15       8 7      3 2     0
//	+---------+----------+----------+--------+-------+
//	| 0       | log page | info     | 0      | type  |
//	+---------+----------+----------+--------+-------+
type Event uint32

// Events. Each names the log page that tells more.
const (
	EventNamespaceChanged Event = 0x00040002
	EventANAChanged       Event = 0x000C0302
	EventDiscoveryChanged Event = 0x0070F002
	EventReservation      Event = 0x00800006
	EventSanitizeDone     Event = 0x00810106
)

// Kind returns the event's type.
func (e Event) Kind() EventKind { return EventKind(e & 7) }

// Info returns what has happened, within the type.
func (e Event) Info() uint8 { return uint8(e >> 8) }

// Log returns the log page that tells more; reading it allows the next event.
func (e Event) Log() LogID { return LogID(e >> 16) }

// String describes the event.
func (e Event) String() string {
	switch e {
	case EventNamespaceChanged:
		return "namespace attributes changed"
	case EventANAChanged:
		return "asymmetric namespace access changed"
	case EventDiscoveryChanged:
		return "discovery log changed"
	case EventReservation:
		return "reservation log page available"
	case EventSanitizeDone:
		return "sanitize has ended"
	}
	return fmt.Sprintf("event %08xh", uint32(e))
}
