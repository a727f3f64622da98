package resident

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// pageSize is that of mincore(2).
var pageSize = uintptr(os.Getpagesize())

// InMemory asks the kernel whether all of p is in memory now. It may be taken out again at any
// time. Of the mapping of a file that this process may not write to, the kernel always says yes:
// it does not tell what others have read. So for such a file, reading p may wait for a disk all
// the same.
func InMemory(p []byte) bool {
	var there [32]byte // a byte for each page: a payload has one call
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
