//go:build race

package rdmamsg

const raceEnabled = true
