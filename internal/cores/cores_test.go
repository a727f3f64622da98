package cores

import (
	"runtime"
	"testing"
)

// A scheduler with more processors is no machine with more cores.
func TestCount(t *testing.T) {
	before := runtime.GOMAXPROCS(0)
	defer runtime.GOMAXPROCS(before)
	runtime.GOMAXPROCS(before + 14)
	if got := Count(); got != before {
		t.Errorf("%d cores, want %d", got, before)
	}
}
