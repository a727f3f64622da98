package blockdev

import (
	"syscall"
	"unsafe"
)

// madvPopulateRead is MADV_POPULATE_READ, which kernels have since 5.14.
const madvPopulateRead = 22

// Populate brings the memory of a direct read lease in, as a READ would: the
// kernel may have taken pages back since the device saw them last. It waits for
// storage. Other leases are in memory already. A kernel that cannot do it leaves
// it at what the device itself did when it lent the memory.
func (l *Lease) Populate() error {
	if !l.Direct || l.Write {
		return nil
	}
	for _, s := range l.Segs {
		if s = wholePages(s); len(s) == 0 {
			continue
		}
		err := syscall.EINTR
		for err == syscall.EINTR || err == syscall.EAGAIN {
			err = errno(syscall.Madvise(s, madvPopulateRead))
		}
		switch err {
		case 0:
		case syscall.EINVAL:
			return nil
		default:
			return &Error{Op: "populate", Store: "mapping", Off: l.Off, Len: int64(l.Len), Kind: KindOf(err), Cause: err}
		}
	}
	return nil
}

// wholePages is the part of s that consists of whole pages, which alone madvise
// takes.
func wholePages(s []byte) []byte {
	page := syscall.Getpagesize()
	skip := -int(uintptr(unsafe.Pointer(unsafe.SliceData(s)))) & (page - 1)
	if skip >= len(s) {
		return nil
	}
	s = s[skip:]
	return s[:len(s)&^(page-1)]
}

func errno(err error) syscall.Errno {
	if no, ok := err.(syscall.Errno); ok {
		return no
	}
	return 0
}
