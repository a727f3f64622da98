package scsi

import (
	"softiser/internal/spc"
	"softiser/target/volume"
)

// face is what the volume of a LU tells it.
type face LU

// Notify implements volume.Face: initiators learn it by unit attentions.
func (f *face) Notify(e volume.Event) {
	lu := (*LU)(f)
	if e.Kind == volume.StateRestored {
		lu.unit.modes.reload()
	}
	var match func(*Nexus) bool
	if e.Who != nil {
		match = func(n *Nexus) bool { return e.Who(&n.client) }
	}
	if asc := eventASC[e.Kind]; asc != 0 {
		lu.attention(asc, match)
	}
}

var eventASC = [...]spc.ASC{
	volume.GeometryChanged:       spc.ASCCapacityChanged,
	volume.SpaceLow:              spc.ASCSoftThreshold,
	volume.ReservationReleased:   spc.ASCReservReleased,
	volume.ReservationPreempted:  spc.ASCReservPreempted,
	volume.RegistrationPreempted: spc.ASCRegistrPreempted,
	volume.ProtectionChanged:     spc.ASCModeChanged,
	volume.PathChanged:           0, // the target has its own states, see setPath
	volume.RewriteEnded:          0, // whoever wants to know asks
	volume.StateRestored:         0, // the change of the access state tells
}

// Left implements volume.Face.
func (f *face) Left() {
	lu := (*LU)(f)
	if lu.unit != nil {
		lu.unit.leave(lu)
	}
	lu.dev.left(lu)
}
