package marks

import (
	"fmt"
	"math"
	"testing"
)

func TestMarks(t *testing.T) {
	var m Marks
	var at []uint64
	for _, used := range []uint64{0, 79, 80, 84, 85, 84, 85, 80, 85, 96, 99, 100, 100, 75, 81, 100} {
		if m.Passed(used*7, 700) {
			at = append(at, used)
		}
	}
	if got := fmt.Sprint(at); got != "[80 85 96 100 81 100]" {
		t.Error(got)
	}
	if m = (Marks{}); m.Passed(0, 0) || !m.Passed(math.MaxUint64, math.MaxUint64) {
		t.Error("an empty device is full, or a full one is not")
	}
}
