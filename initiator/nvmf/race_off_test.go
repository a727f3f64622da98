//go:build !race

package nvmf_test

const raceEnabled = false
