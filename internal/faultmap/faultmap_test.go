package faultmap

import (
	"runtime/debug"
	"testing"
)

func TestNew(t *testing.T) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	mem := New(t, 16<<10, 8<<10)
	faults := func(at int) (did bool) {
		defer func() { did = recover() != nil }()
		mem[at]++
		return
	}
	for at, want := range map[int]bool{0: false, 8<<10 - 1: false, 8 << 10: true, 16<<10 - 1: true} {
		if got := faults(at); got != want {
			t.Errorf("byte %d faults: %v, want %v", at, got, want)
		}
	}
}
