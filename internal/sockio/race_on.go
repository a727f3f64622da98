//go:build race

package sockio

import (
	"runtime"
	"unsafe"
)

// Like package syscall, order what was done before a write against what is done
// after a read, for peers that live in one process, as in tests.
var ioSync int64

func ioRelease() { runtime.RaceReleaseMerge(unsafe.Pointer(&ioSync)) }
func ioAcquire() { runtime.RaceAcquire(unsafe.Pointer(&ioSync)) }
