// Package race tells whether the race detector is on and tells the detector of an order
// that it can't see, as the standard library's package of the same name does: what goes
// through a socket of this process orders what both of its ends do. Without the
// detector all of it is nothing.
package race
