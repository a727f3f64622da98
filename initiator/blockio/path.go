package blockio

import (
	"context"
	"fmt"
)

// Access is what a path to a volume is good for, as the target says: the asymmetric
// access state of SCSI (ALUA, SPC-4 §5.15.2.4) and of NVMe (ANA, Base 2.1 §8.1.1).
type Access uint8

// Access states, the best first.
const (
	AccessOptimized    Access = iota
	AccessNonOptimized        // works, but costs more
	AccessTransitioning
	AccessInaccessible // standby or unavailable; inaccessible in NVMe
	AccessGone         // offline; persistent loss in NVMe
)

var accessNames = [...]string{"optimized", "non-optimized", "transitioning", "inaccessible", "gone"}

// String returns the state's name.
func (a Access) String() string {
	if int(a) < len(accessNames) {
		return accessNames[a]
	}
	return fmt.Sprintf("access state %d", uint8(a))
}

// Usable reports whether commands are carried out.
func (a Access) Usable() bool { return a <= AccessNonOptimized }

// Path is a volume by one way to it, which fails commands at once when it is lost and
// comes back by itself. See package multipath for what is made of several.
type Path interface {
	Volume
	// Connected reports whether commands flow; if not, why.
	Connected() (bool, error)
	// Access asks the target what the path is good for now. shared tells that by its own
	// account others of its ports serve the volume as well. An answer shows that commands
	// are carried out to that extent, too.
	Access(ctx context.Context) (state Access, shared bool, err error)
	// Epoch is the life of the target's cache that the path leads to.
	Epoch() *Epoch
	// Fence returns nil when nothing can take effect any more of what this path was given
	// before it was lost the last time; others lead to the same volume. It makes one
	// attempt.
	Fence(ctx context.Context, others []Path) error
	// Cancel ends a request before its time, with err; what is at the target is aborted. Of a change of
	// which the target has not said so when its connection is lost, the error is an ErrOutcomeUnknown, too.
	Cancel(r *Request, err error)
	// Reset has the target end every command on the volume, whoever gave it.
	Reset(ctx context.Context) error
}
