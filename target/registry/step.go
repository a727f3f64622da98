package registry

import (
	"context"
	"errors"

	"softiser/config"
)

// Change is one difference between a configuration and what is served.
type Change struct {
	Action string // add, remove, replace, update, resize
	Object string // what it is done to
	Error  string // why it is not done
}

// step is a change with the way to make it. Steps take away what goes before any
// of them brings what comes, which may want the same volumes.
type step struct {
	Change                             // Error, when set from the start, says why it cannot be made here
	take   func(context.Context) error // away; nil: nothing goes
	do     func(context.Context) error // nil: nothing comes
	frees  []place                     // what take takes away
	node   string                      // the target or subsystem that do adds, or adds to
	serves *config.Volume              // what do makes a LUN or a namespace of
	at     place                       // where
	// volume is the one whose storage do waits for, "" if none: such steps wait for each
	// other only when they are about the same volume.
	volume string
	// keep puts back into c, the configuration that is to be recorded, what has not
	// been changed, so that the next reload tries again; nil: it sees by itself.
	keep func(c *config.Config)
}

// text is what a change says of an error.
func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// atStart is why most settings of the process are not changed.
const atStart = "takes effect when iser-target is started again"

// errMoves refuses to change the access states of what moves between nodes.
var errMoves = errors.New("the volume is in a group of ha.groups: its access states of an active group " + atStart)
