//go:build !race

package datamovertest

const raceEnabled = false
