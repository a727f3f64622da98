package scsi

import "softiser/target/volume"

// Placement says where the data of a WRITE is received.
type Placement = volume.Placement

// Placements.
const (
	PlacementDirect   = volume.PlacementDirect
	PlacementVerified = volume.PlacementVerified
)
