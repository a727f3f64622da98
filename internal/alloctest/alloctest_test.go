package alloctest

import (
	"testing"

	"softiser/internal/leaktest"
	"softiser/internal/race"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func TestPerRun(t *testing.T) {
	var kept []byte
	want := 1.0
	if race.Enabled {
		want = 0
	}
	if n := PerRun(10, func() { kept = make([]byte, 64) }); n != want {
		t.Errorf("%v allocations a run, %v expected", n, want)
	}
	if n := PerRun(10, func() { kept[0]++ }); n != 0 {
		t.Errorf("%v allocations a run where there are none", n)
	}
}
