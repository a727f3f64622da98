package registry

import (
	"fmt"
	"strings"
)

// place is where a volume is served: a LUN of a target, or a namespace of a subsystem.
type place struct {
	node string // IQN, or NQN
	id   uint32 // LUN, or NSID
}

// String is what an operator calls the place.
func (p place) String() string {
	if strings.HasPrefix(p.node, "nqn.") {
		return fmt.Sprintf("namespace %d of %s", p.id, p.node)
	}
	return fmt.Sprintf("LUN %d of %s", p.id, p.node)
}
