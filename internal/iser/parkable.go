package iser

import (
	"softiser/internal/iscsi"
	"softiser/internal/iscsitcp"
)

// Parkable is a datamover that can be parked, and go on in another process: an
// *iscsitcp.Conn or a *Parking.
type Parkable interface {
	// Park makes the receive goroutine stop in front of the next PDU for which may, which it
	// calls without locks held, reports true. changed is called, with locks held, when Still
	// may have become true. It reports false where the connection cannot be parked.
	Park(may func() bool, changed func()) bool
	// Nudge makes the receive goroutine ask may again though nothing comes.
	Nudge()
	// Still reports whether the connection stands, and is silent until Unpark.
	Still() bool
	// Unpark makes the connection go on.
	Unpark()
}

// ParkableOf returns what carries dm at the moment as one that can be parked; nil: nothing
// that can, as an [Upgraded] between its two phases. One over RoCE refuses to be parked.
func ParkableOf(dm iscsi.Datamover) Parkable {
	switch dm := dm.(type) {
	case *iscsitcp.Conn:
		return dm
	case *Conn:
		return dm.Parking()
	case *Upgraded:
		if t := dm.Stream(); t != nil {
			return t
		}
		if t := dm.RDMA(); t != nil {
			return t.Parking()
		}
	}
	return nil
}
