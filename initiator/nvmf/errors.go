package nvmf

import (
	"errors"
	"fmt"

	"softiser/blockdev"
	"softiser/initiator/blockio"
	"softiser/internal/nvme"
)

// StatusError is a command that ended with another status than success. Status is the
// status code type and code, 0x285 for a compare failure; DoNotRetry says that the same
// command would fail again.
type StatusError struct {
	Command    string // its name
	Status     uint16
	DoNotRetry bool
}

func statusError(name string, s nvme.Status) error {
	e := &StatusError{name, uint16(s &^ (nvme.DoNotRetry | nvme.More)), s&nvme.DoNotRetry != 0}
	switch nvme.Status(e.Status) {
	case nvme.InvalidOpcode, nvme.CommandSizeExceeded: // Linux' target reports what its storage does not support by either
		return fmt.Errorf("%w: %w", blockdev.ErrNotSupported, e)
	case nvme.ReservationConflict:
		return fmt.Errorf("%w: %w", blockio.ErrReservation, e)
	case nvme.ANAInaccessible, nvme.ANAPersistentLoss, nvme.ANATransition:
		return fmt.Errorf("%w: %w", blockio.ErrInaccessible, e)
	case nvme.NamespaceWriteProtect:
		return fmt.Errorf("%w: %w", blockdev.ErrReadOnly, e)
	case nvme.LBAOutOfRange:
		return fmt.Errorf("%w: %w", blockdev.ErrOutOfRange, e)
	case nvme.CapacityExceeded:
		return fmt.Errorf("%w: %w", blockdev.ErrNoSpace, e)
	case nvme.InvalidNamespace:
		return fmt.Errorf("%w: %w", blockio.ErrNoLUN, e)
	case nvme.UnrecoveredRead, nvme.WriteFault:
		return fmt.Errorf("%w: %w", blockdev.ErrMedium, e)
	}
	return e
}

func (e *StatusError) Error() string {
	return fmt.Sprintf("nvmf: %s: %v", e.Command, nvme.Status(e.Status))
}

// ConnectError is a Connect that the controller has refused.
type ConnectError struct {
	Queue      uint16
	Status     uint16 // status code type and code
	What       string // the parameter that is wrong, where it is told
	DoNotRetry bool   // the same Connect would be refused again
}

func (e *ConnectError) Error() string {
	s := fmt.Sprintf("nvmf: the controller refuses queue %d: %v", e.Queue, nvme.Status(e.Status))
	if e.What != "" {
		s += " (" + e.What + ")"
	}
	return s
}

// Errors besides those of packages blockio and blockdev.
var (
	// ErrShort ends a read that succeeded though fewer bytes have come than were asked for.
	ErrShort = errors.New("nvmf: the controller sent fewer bytes than asked for")
	// ErrChanged fails an association whose namespace is another volume than was opened,
	// or has blocks of another size: nothing is written to it. One that is a path (Config.Path) is down
	// until the namespace is what it was.
	ErrChanged = errors.New("nvmf: the namespace is not the same any more")
)

// unknown reports whether the controller says that it does not know what it was asked for, and
// not that it cannot answer now, as one that shuts down.
func unknown(err error) bool {
	se, ok := errors.AsType[*StatusError](err)
	return ok && (se.DoNotRetry && se.Status != uint16(nvme.CommandSequenceError) || se.Status == uint16(nvme.InvalidField) || se.Status == uint16(nvme.InvalidOpcode))
}

// retryable reports whether a command that ended so may be sent again on this
// association.
func retryable(s nvme.Status) bool {
	if s&nvme.DoNotRetry != 0 {
		return false
	}
	switch s &^ nvme.More {
	case nvme.CommandInterrupted, nvme.NamespaceNotReady, nvme.TransientTransport, nvme.ANATransition, nvme.InternalPathError, nvme.AbortRequested:
		return true
	}
	return false
}
