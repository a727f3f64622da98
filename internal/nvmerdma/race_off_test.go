//go:build !race

package nvmerdma

const raceEnabled = false
