package initiator

import (
	"context"
	"fmt"

	"softiser/initiator/blockio"
)

// The LUN as one of several paths to a volume, see Config.Path.

var _ blockio.Path = (*LUN)(nil)

// Connected reports whether commands flow over any session of the LUN, and if not, why.
func (l *LUN) Connected() (bool, error) {
	var why error
	for _, s := range l.paths {
		st, err := s.State()
		if st == StateActive {
			return true, nil
		}
		if err == nil {
			err = fmt.Errorf("the session is %v", st)
		}
		why = err
	}
	return false, why
}

// Epoch is the life of the target's cache that the LUN is in.
func (l *LUN) Epoch() *blockio.Epoch { return l.epoch.Load() }

// Access asks for the state of the target port group that the LUN is reached through
// (REPORT TARGET PORT GROUPS). A target without groups has one path that is as good as
// any, if it says that the unit is ready.
func (l *LUN) Access(ctx context.Context) (state blockio.Access, shared bool, err error) {
	at := lookup{l.path(), l.wire}
	if ready, state, err := at.ready(ctx); !ready {
		return state, false, err
	}
	return at.groups(ctx)
}
