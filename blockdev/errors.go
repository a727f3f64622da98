package blockdev

import (
	"errors"
	"fmt"
	"syscall"
)

// Error is a failure of one operation on a backing store. errors.Is matches
// both Kind, the sentinel that decides the sense code, and Cause, the errno.
type Error struct {
	Op    string // "pread", "msync", …
	Store string // path or name of the backing store
	Off   int64  // where the range of the volume begins, bytes
	Len   int64  // and how long it is
	Kind  error  // one of the Err… of this package
	Cause error  // what the operating system said; may be nil
}

// Error says what failed, where and why.
func (e *Error) Error() string {
	s := fmt.Sprintf("blockdev: %s: %s of %d bytes at %d failed", e.Store, e.Op, e.Len, e.Off)
	if e.Cause != nil {
		s += ": " + e.Cause.Error()
	}
	return s + " (" + e.Kind.Error() + ")"
}

// Unwrap gives errors.Is and errors.As both reasons.
func (e *Error) Unwrap() []error {
	if e.Cause == nil {
		return []error{e.Kind}
	}
	return []error{e.Kind, e.Cause}
}

// KindOf maps what a system call on a backing store said to the sentinel that
// a command fails with. Whatever is not about space or permission is a medium
// error: the initiator must neither retry for ever nor believe the data.
func KindOf(err error) error {
	var no syscall.Errno
	if !errors.As(err, &no) {
		return ErrMedium
	}
	switch no {
	case syscall.ENOSPC, syscall.EDQUOT, syscall.EFBIG, syscall.ENOMEM:
		return ErrNoSpace
	case syscall.EROFS, syscall.EPERM, syscall.EACCES, syscall.EBADF:
		return ErrReadOnly
	case syscall.EOPNOTSUPP, syscall.ENOSYS:
		return ErrNotSupported
	case syscall.EBUSY, syscall.ETXTBSY:
		return ErrInUse
	}
	return ErrMedium
}
