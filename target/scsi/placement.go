package scsi

import "softiser/target/volume"

// Placement says where the data of a WRITE is received.
type Placement = volume.Placement

// Placements.
const (
	PlacementDirect   = volume.PlacementDirect
	PlacementVerified = volume.PlacementVerified
)

// commitWaits reports whether committing the lease of a WRITE is a worker's job.
func commitWaits(t *Task) bool { return t.lu.vol.CommitWaits(&t.Lease, &t.probe, t.fua()) }
