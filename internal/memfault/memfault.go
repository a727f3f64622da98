// Package memfault lets Go code survive memory that faults (SIGBUS): the mapping of a file that
// has been truncated, or that lies on a disk which fails or is full. Code that touches memory
// which may be such a mapping is in a function of this form:
//
//	func sum(p []byte) (ok bool) {
//		defer memfault.Guard(debug.SetPanicOnFault(true), &ok)
//		// touch p
//		return true
//	}
package memfault

import "runtime/debug"

// Guard is deferred around code that touches such memory, with what debug.SetPanicOnFault(true)
// returned: a fault there makes *ok false instead of ending the process. Any other panic goes on.
func Guard(old bool, ok *bool) {
	debug.SetPanicOnFault(old)
	if r := recover(); r != nil {
		if !Is(r) {
			panic(r)
		}
		*ok = false
	}
}

// Is reports whether a recovered panic is a memory fault.
func Is(r any) bool {
	_, ok := r.(interface{ Addr() uintptr })
	return ok
}
