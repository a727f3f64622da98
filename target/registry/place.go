package registry

import (
	"fmt"
	"strings"

	"softiser/internal/iscsi"
)

// place is where a volume is served: a LUN of a target, or a namespace of a subsystem.
type place struct {
	node string // IQN, or NQN
	id   uint32 // LUN, or NSID
}

// nodeName is the name that places have of what somebody calls so: case counts in an NQN, and not
// in an iSCSI name.
func nodeName(s string) string {
	if strings.HasPrefix(s, "nqn.") {
		return s
	}
	return iscsi.NormalizeName(s)
}

// String is what an operator calls the place.
func (p place) String() string {
	if strings.HasPrefix(p.node, "nqn.") {
		return fmt.Sprintf("namespace %d of %s", p.id, p.node)
	}
	return fmt.Sprintf("LUN %d of %s", p.id, p.node)
}
