package blockio

import (
	"errors"
	"testing"
)

func TestNoLUN(t *testing.T) {
	for want, there := range map[string][]uint64{
		"none, nor another LUN that we may use": {},
		"none; it has LUN 3":                    {3},
		"none; it has LUNs 0, 1, 300":           {0, 1, 300},
		"none; it has LUNs 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 and 2 more": {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17},
	} {
		if err := NoLUN("none", "LUN", there); !errors.Is(err, ErrNoLUN) || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
