package registry

import (
	"fmt"

	"softiser/target/scsi"
)

// GroupState is the state of a group on this node.
type GroupState uint8

// States of groups.
const (
	GroupStandby GroupState = iota
	GroupPromoting
	GroupActive
	GroupDemoting
	GroupStuck
)

var groupStates = [...]string{
	GroupStandby: "standby", GroupPromoting: "promoting", GroupActive: "active", GroupDemoting: "demoting", GroupStuck: "stuck",
}

// String returns the name of the state, as status and iser-target group print it.
func (s GroupState) String() string {
	if int(s) < len(groupStates) {
		return groupStates[s]
	}
	return fmt.Sprintf("GroupState(%d)", uint8(s))
}

// access is what initiators see of a group in the state; active is what the configuration
// says of the LUN.
func (s GroupState) access(active scsi.AccessState) scsi.AccessState {
	switch s {
	case GroupActive:
		return active
	case GroupPromoting, GroupDemoting:
		return scsi.Transitioning
	case GroupStuck:
		return scsi.Unavailable
	}
	return scsi.Standby
}
