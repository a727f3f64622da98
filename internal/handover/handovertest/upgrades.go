// Package handovertest is for tests of processes whose place others take.
package handovertest

import (
	"os"
	"strconv"
	"testing"
)

// Upgrades is how often a test under load upgrades: usually so often, or as TARGET_TEST_UPGRADES says
// (make bench-upgrade).
func Upgrades(t testing.TB, usually int) int {
	t.Helper()
	s := os.Getenv("TARGET_TEST_UPGRADES")
	if s == "" {
		return usually
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 {
		t.Fatalf("TARGET_TEST_UPGRADES=%s", s)
	}
	return n
}
