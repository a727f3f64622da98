package handover

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
)

// TestEach: every one has its turn, and all that goes wrong is told.
func TestEach(t *testing.T) {
	var sum atomic.Int64
	err := Each(100, func(i int) error {
		sum.Add(int64(i))
		if i == 3 || i == 70 {
			return errors.New(strings.Repeat("x", i))
		}
		return nil
	})
	if sum.Load() != 4950 {
		t.Errorf("sum %d", sum.Load())
	}
	if err == nil || err.Error() != strings.Repeat("x", 3)+"\n"+strings.Repeat("x", 70) {
		t.Errorf("%v", err)
	}
	if err := Each(0, nil); err != nil {
		t.Error(err)
	}
}
