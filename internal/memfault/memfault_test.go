package memfault_test

import (
	"errors"
	"runtime/debug"
	"testing"

	"softiser/internal/faultmap"
	"softiser/internal/memfault"
)

func guarded(f func()) (ok bool) {
	defer memfault.Guard(debug.SetPanicOnFault(true), &ok)
	f()
	return true
}

// A fault is told, and what comes afterwards faults as before.
func TestGuard(t *testing.T) {
	mem := faultmap.New(t, 8<<10, 4<<10)
	if !guarded(func() { mem[0]++ }) {
		t.Error("memory that is there faults")
	}
	if guarded(func() { mem[4<<10]++ }) || guarded(func() { copy(mem, mem[4<<10:]) }) {
		t.Error("a fault is not told")
	}
	if debug.SetPanicOnFault(false) {
		t.Error("faults behind the guard are panics, too")
	}
}

// Other panics are mistakes of ours, and are not hidden.
func TestOtherPanics(t *testing.T) {
	var short []byte
	at := 1
	for name, f := range map[string]func(){
		"an index": func() { short[at]++ },
		"an error": func() { panic(errors.New("mistake")) },
		"nil":      func() { var p *int; *p = 1 },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: the panic is gone", name)
				}
			}()
			guarded(f)
		}()
		if debug.SetPanicOnFault(false) {
			t.Errorf("%s: faults behind the guard are panics, too", name)
		}
	}
}
