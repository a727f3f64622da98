package nbd

import (
	"errors"
	"syscall"

	"softiser/blockdev"
	"softiser/initiator/blockio"
	"softiser/internal/spc"
)

// Error numbers of the protocol; they are Linux's.
const (
	errPerm     = 1
	errIO       = 5
	errNoMem    = 12
	errInval    = 22
	errNoSpace  = 28
	errOverflow = 75
	errNotSup   = 95
	errShutdown = 108
)

// errnoOf maps the end of a request to the protocol's error number: one table
// for everything below.
func errnoOf(err error) uint32 {
	var sense *spc.SenseError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &sense):
		return errnoOfSense(sense)
	case errors.Is(err, blockdev.ErrReadOnly):
		return errPerm
	case errors.Is(err, blockio.ErrReservation):
		return errPerm
	case errors.Is(err, blockdev.ErrNoSpace):
		return errNoSpace
	case errors.Is(err, blockdev.ErrOutOfRange), errors.Is(err, blockdev.ErrUnaligned), errors.Is(err, blockio.ErrInvalid):
		return errInval
	case errors.Is(err, blockdev.ErrNotSupported):
		return errNotSup
	case errors.Is(err, blockio.ErrClosed), errors.Is(err, blockdev.ErrClosed):
		return errShutdown
	case errors.Is(err, syscall.ENOMEM):
		return errNoMem
	}
	return errIO
}

func errnoOfSense(e *spc.SenseError) uint32 {
	switch s := e.Sense; {
	case e.Status == spc.StatusReservationConflict:
		return errPerm
	case e.Status != spc.StatusCheckCondition:
		return errIO
	case s.ASC == spc.ASCSpaceAllocFailed:
		return errNoSpace
	case s.Key == spc.KeyDataProtect:
		return errPerm
	case s.ASC == spc.ASCLBAOutOfRange:
		return errInval
	case s.Key == spc.KeyIllegalRequest:
		return errNotSup
	}
	return errIO
}
