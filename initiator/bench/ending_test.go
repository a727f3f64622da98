package bench

import "testing"

// What a report says of a clone that was stopped: an interruption is what the user has caused, and
// only where something was left to do.
func TestInterrupted(t *testing.T) {
	for _, tc := range []struct {
		what            string
		stop            func(e *ending)
		left, cancelled bool
		want            bool
	}{
		{"nobody has stopped it", func(*ending) {}, true, false, false},
		{"it had ended when the user stopped the run", func(*ending) {}, true, true, false},
		{"stopped with nothing left", func(e *ending) { e.stopped.Store(true) }, false, true, false},
		{"stopped with something left", func(e *ending) { e.stopped.Store(true) }, true, true, true},
		{"another job's exitall", func(e *ending) { e.dismissed.Store(true); e.stopped.Store(true) }, true, false, false},
		{"exitall of a run that was cancelled", func(e *ending) { e.dismissed.Store(true); e.stopped.Store(true) }, true, true, true},
		{"a steady state", func(e *ending) { e.concluded.Store(true); e.stopped.Store(true) }, true, false, false},
		{"a target that stays away", func(e *ending) { e.abandoned.Store(true); e.stopped.Store(true) }, true, false, true},
	} {
		var e ending
		tc.stop(&e)
		e.leaves(tc.left)
		e.leaves(false) // nothing left later does not undo it
		if got := e.interrupted(tc.cancelled); got != tc.want {
			t.Errorf("%s: interrupted %v, want %v", tc.what, got, tc.want)
		}
	}
}
