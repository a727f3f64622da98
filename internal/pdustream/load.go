package pdustream

import (
	"runtime/debug"
	"unsafe"

	"softiser/internal/memfault"
	"softiser/internal/resident"
	"softiser/internal/sockio"
)

// Long data of volumes in memory is read, a byte of each line, just before the call that sends
// it: the kernel's copy waits for memory that is in no cache, loads in a row are under way side by
// side (ADR 18). The call ends where that ends, so that all of it is still in the cache.
const (
	loadBytes = soonBytes // of a call; 256 KiB gave half of it, 1 MiB no more
	loadMin   = 16 << 10  // length of a piece
)

// lately is where the last long data began that has been sent, in the place that its address
// says. What is sent again soon is still in a cache, and what is in a cache the kernel copies
// as fast as it can be read.
type lately [64]uintptr

// again reports whether data that begins with p has been sent lately, and enters it.
func (l *lately) again(p []byte) bool {
	at := uintptr(unsafe.Pointer(unsafe.SliceData(p)))
	slot := &l[at/loadMin%uintptr(len(l))]
	if *slot == at {
		return true
	}
	*slot = at
	return false
}

// load reads the long pieces of what v begins with, loadBytes at most, and returns that part of
// v, of which it may have shortened the last piece; false: v is as it was, there is none.
// What v names is resident; where it is gone, by now, the call will find that.
func load(v []sockio.Vec) ([]sockio.Vec, bool) {
	n, size, long := 0, 0, false
	for n < len(v) && size < loadBytes {
		long = long || min(v[n].Len, uint64(loadBytes-size)) >= loadMin
		size += int(v[n].Len)
		n++
	}
	if !long {
		return v, false
	}
	part := v[:n]
	if size > loadBytes {
		part[n-1].Len -= uint64(size - loadBytes)
	}
	touch(part)
	return part, true
}

// touch reads the long pieces of v.
func touch(v []sockio.Vec) (ok bool) {
	defer memfault.Guard(debug.SetPanicOnFault(true), &ok)
	for i := range v {
		if v[i].Len >= loadMin {
			resident.Load(unsafe.Slice(v[i].Base, v[i].Len))
		}
	}
	return true
}
