// Package errno maps the end of a request to the error number with which a block device
// answers it, for NBD, whose numbers are Linux's, and for ublk.
package errno

import (
	"errors"
	"syscall"

	"softiser/blockdev"
	"softiser/initiator/blockio"
	"softiser/internal/spc"
)

// Of maps the end of a request; 0 is success.
func Of(err error) syscall.Errno {
	var sense *spc.SenseError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &sense):
		return ofSense(sense)
	case errors.Is(err, blockdev.ErrReadOnly):
		return syscall.EPERM
	case errors.Is(err, blockio.ErrReservation):
		return syscall.EPERM
	case errors.Is(err, blockdev.ErrNoSpace):
		return syscall.ENOSPC
	case errors.Is(err, blockdev.ErrOutOfRange), errors.Is(err, blockdev.ErrUnaligned), errors.Is(err, blockio.ErrInvalid):
		return syscall.EINVAL
	case errors.Is(err, blockdev.ErrNotSupported):
		return syscall.EOPNOTSUPP
	case errors.Is(err, blockio.ErrClosed), errors.Is(err, blockdev.ErrClosed):
		return syscall.ESHUTDOWN
	case errors.Is(err, syscall.ENOMEM):
		return syscall.ENOMEM
	}
	return syscall.EIO
}

func ofSense(e *spc.SenseError) syscall.Errno {
	switch s := e.Sense; {
	case e.Status == spc.StatusReservationConflict:
		return syscall.EPERM
	case e.Status != spc.StatusCheckCondition:
		return syscall.EIO
	case s.ASC == spc.ASCSpaceAllocFailed:
		return syscall.ENOSPC
	case s.Key == spc.KeyDataProtect:
		return syscall.EPERM
	case s.ASC == spc.ASCLBAOutOfRange:
		return syscall.EINVAL
	case s.Key == spc.KeyIllegalRequest:
		return syscall.EOPNOTSUPP
	}
	return syscall.EIO
}
