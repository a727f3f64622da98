//go:build race

package race

import (
	"runtime"
	"unsafe"
)

// Enabled is whether this binary was built with -race.
const Enabled = true

// Point orders what was done before a Release against what is done after a later Acquire.
// A package variable of it serves a whole package.
type Point struct{ at int64 }

// Release comes before the system call that tells another goroutine.
func (p *Point) Release() { runtime.RaceReleaseMerge(unsafe.Pointer(&p.at)) }

// Acquire comes after the system call that was told.
func (p *Point) Acquire() { runtime.RaceAcquire(unsafe.Pointer(&p.at)) }
