//go:build !race

package rdmamsg

const raceEnabled = false
