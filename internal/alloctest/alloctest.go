// Package alloctest counts what tests allocate.
package alloctest

import (
	"testing"

	"softiser/internal/race"
)

// PerRun runs f once and then as often as runs says, and returns how many allocations a
// run made, rounded down, those of other goroutines included. Under the race detector, where
// a sync.Pool forgets what it holds at random, it runs f once and returns 0.
func PerRun(runs int, f func()) float64 {
	if race.Enabled {
		f()
		return 0
	}
	return testing.AllocsPerRun(runs, f)
}
