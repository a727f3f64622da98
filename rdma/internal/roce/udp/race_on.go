//go:build race

package udp

import (
	"runtime"
	"unsafe"
)

// What was done before a call is ordered before what is done behind a later one, as package
// syscall does it: the ends of a connection may live in one process, as in tests.
var ioSync int64

func ioRelease() { runtime.RaceReleaseMerge(unsafe.Pointer(&ioSync)) }
func ioAcquire() { runtime.RaceAcquire(unsafe.Pointer(&ioSync)) }
