package scsi

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// TestITLTable: a table that changes finds what a map would find, and stays in the order
// of its LUNs; what it was before stays as it is.
func TestITLTable(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	const luns = 60
	var table itlTable
	want := map[uint16]*itl{}
	for range 2000 {
		lun, before, was := uint16(r.IntN(luns)), slices.Clone(table), table
		if r.IntN(3) == 0 {
			table = table.without(lun)
			delete(want, lun)
		} else {
			i := &itl{}
			table, want[lun] = table.with(lun, i), i
		}
		if !slices.Equal(before, was) {
			t.Fatal("the table before the change has changed, too")
		}
		if len(table) != len(want) || !slices.IsSortedFunc(table, func(a, b itlEntry) int { return int(a.lun) - int(b.lun) }) {
			t.Fatalf("%d entries, want %d, in order: %v", len(table), len(want), table)
		}
		for lun := range uint16(luns + 2) {
			if got := table.find(lun); got != want[lun] {
				t.Fatalf("LUN %d of %d: %p, want %p", lun, len(table), got, want[lun])
			}
		}
	}
}
