package fsm

import (
	"errors"
	"testing"
)

func TestTable(t *testing.T) {
	const a, b, last = uint8(0), uint8(1), uint8(15)
	table := Of([][]uint8{a: {b, last}, b: {b}, last: {a}})
	legal := map[[2]uint8]bool{{a, b}: true, {a, last}: true, {b, b}: true, {last, a}: true}
	for from := range uint8(16) {
		for to := range uint8(16) {
			if got := table.Has(from, to); got != legal[[2]uint8{from, to}] {
				t.Errorf("%d to %d: %v", from, to, got)
			}
		}
	}
}

func TestIllegal(t *testing.T) {
	quiet := OnIllegal
	defer func() { OnIllegal = quiet }()
	var told error
	OnIllegal = func(err error) { told = err }
	err := Illegal("lift", "a door", "open", "moving")
	if want := "lift: internal error: a door cannot go from open to moving"; err.Error() != want || !errors.Is(told, err) {
		t.Errorf("%v, told %v, want %s", err, told, want)
	}
}
