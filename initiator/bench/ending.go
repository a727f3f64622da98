package bench

import "sync/atomic"

// ending is why a clone issues nothing more although it has work left, and what its report is to
// say of that.
type ending struct {
	// Whoever ends the clone sets the reason before stopped.
	stopped   atomic.Bool
	dismissed atomic.Bool // another clone has ended (exitall)
	concluded atomic.Bool // its state is steady
	abandoned atomic.Bool // its target stays away

	// The runner's:
	over   bool // it has done what it was to find out, or was too slow
	failed bool // an operation, or a check where one is enough
	cut    bool // it was stopped while there was something left to do
}

// halted reports whether nothing more is to be issued, whatever the time and the work left;
// tolerant: failures do not count (continue_on_error).
func (e *ending) halted(tolerant bool) bool {
	return e.stopped.Load() || e.over || e.failed && !tolerant
}

// leaves takes note of something that is left to do, where the clone has been stopped.
func (e *ending) leaves(something bool) { e.cut = e.cut || something && e.stopped.Load() }

// interrupted reports whether the clone has not done what it was asked for; cancelled: the
// user has ended the run. What other jobs and a steady state end is as it was asked for.
func (e *ending) interrupted(cancelled bool) bool {
	return e.cut && (cancelled || !e.dismissed.Load() && !e.concluded.Load())
}
