// Package alloctest counts what tests allocate.
package alloctest

import (
	"testing"

	"softiser/internal/race"
)

// PerRun runs f once and then as often as runs says, and returns how many allocations a
// run made, rounded down, those of other goroutines included. Under the race detector it
// runs f as often and returns 0: there a sync.Pool forgets what it holds at random.
func PerRun(runs int, f func()) float64 {
	n := testing.AllocsPerRun(runs, f)
	if race.Enabled {
		return 0
	}
	return n
}
