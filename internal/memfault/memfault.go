// Package memfault has Go code survive memory that faults when it is touched, as the mapping
// of a file does that was truncated meanwhile, or lies on a disk that fails or is full. Who
// touches memory that may be such a mapping does it in a function of this form:
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
