package resident

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// pageSize is that of mincore(2).
var pageSize = uintptr(os.Getpagesize())

// pagesAsked is how many pages one call is for: it takes 0.8 µs for one page, 1.2 for so many.
const pagesAsked = 256

// Asked is memory of which the kernel has said that it is in memory. It may be taken out again at
// any time: what has been asked for one message is not to be believed for the next.
type Asked struct{ span }

// There reports whether the first n bytes of p, which may have fewer, are in memory, because they are part of a mapping that
// has been entered, or by what the kernel says. It is asked for what follows in p as well, as far
// as that is one call, and not again for that. False may mean that only something behind is missing.
func (a *Asked) There(p []byte, n int) bool {
	n = min(n, len(p))
	s := spanOf(p[:n])
	if a.lo <= s.lo && s.hi <= a.hi || Holds(p[:n]) {
		return true
	}
	p = p[:max(n, min(len(p), pagesAsked*int(pageSize)))]
	if !InMemory(p) {
		return false
	}
	a.span = spanOf(p)
	return true
}

// InMemory asks the kernel whether all of p is in memory now. It may be taken out again at any
// time. Of the mapping of a file that this process may not write to, the kernel always says yes:
// it does not tell what others have read. So for such a file, reading p may wait for a disk all
// the same.
func InMemory(p []byte) bool {
	var there [pagesAsked]byte // a byte for each page
	s, most := spanOf(p), uintptr(len(there))*pageSize
	for lo := s.lo &^ (pageSize - 1); lo < s.hi; lo += most {
		n := min(s.hi-lo, most)
		if _, _, e := unix.Syscall(unix.SYS_MINCORE, lo, n, uintptr(unsafe.Pointer(&there))); e != 0 {
			return false
		}
		for _, b := range there[:(n+pageSize-1)/pageSize] {
			if b&1 == 0 {
				return false
			}
		}
	}
	return true
}
