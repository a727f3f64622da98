package blockio

import (
	"errors"
	"fmt"
	"strings"
)

// ConfigError is a setting that cannot be used. Nothing has been sent.
type ConfigError struct{ Err error }

func (e *ConfigError) Error() string { return e.Err.Error() }

// Unwrap returns what is wrong.
func (e *ConfigError) Unwrap() error { return e.Err }

// Errors of requests, besides those of package blockdev and of the wire.
var (
	// ErrOutcomeUnknown ends a command that must not be repeated (a compare and
	// write, a raw CDB, a change that was cancelled or of which another part has failed: see Unknown)
	// and whose connection was lost before its status came: the target may or may not have carried it out.
	ErrOutcomeUnknown = errors.New("initiator: connection lost before the status arrived; whether the command was carried out is unknown")
	// ErrSessionLost ends what was outstanding when a session or an association was
	// given up.
	ErrSessionLost = errors.New("initiator: session lost")
	// ErrNoConnection is in the chain of the error of a connection that could not be made: nobody
	// answers, or what answers speaks something else. See NoConnection.
	ErrNoConnection = errors.New("initiator: no connection")
	// ErrClosed ends what is submitted to, or outstanding on, a closed volume.
	ErrClosed = errors.New("initiator: session is closed")
	// ErrTimeout ends a command that the target did not answer in time and that
	// was then aborted.
	ErrTimeout = errors.New("initiator: command timed out and was aborted")
	// ErrTimeoutUnknown is an ErrTimeout and an ErrOutcomeUnknown: the abort was not answered,
	// either, and the connection was given up. The target may yet carry the command out.
	ErrTimeoutUnknown = fmt.Errorf("%w: %w", ErrTimeout, ErrOutcomeUnknown)
	// ErrInvalid ends a request that cannot be expressed as a command.
	ErrInvalid = errors.New("initiator: invalid request")
	// ErrCacheLost ends a flush before which the target has lost its volatile cache:
	// writes that were acknowledged since the flush before may be gone. The next
	// flush is believed again.
	ErrCacheLost = errors.New("initiator: the target lost acknowledged writes that were in its cache; what was written since the last successful flush may be lost")
	// ErrNoLUN is a logical unit or a namespace that the target does not have. See NoLUN.
	ErrNoLUN = errors.New("the target has no such logical unit")
	// ErrInaccessible ends a command that the target has not carried out because this
	// path does not lead to the volume now (Access).
	ErrInaccessible = errors.New("initiator: the volume is not accessible over this path now")
	// ErrReservation ends a command that met somebody else's reservation.
	ErrReservation = errors.New("initiator: reservation conflict: another initiator holds the LUN")
)

// Unknown is an ErrOutcomeUnknown of a request that was given up because of err: it, or a part of it, may yet be carried out.
func Unknown(err error) error {
	if errors.Is(err, ErrOutcomeUnknown) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrOutcomeUnknown, err)
}

// NoConnection marks err as an ErrNoConnection. Its text stays as it is.
func NoConnection(err error) error { return &noConnection{err} }

type noConnection struct{ err error }

func (e *noConnection) Error() string { return e.err.Error() }

func (e *noConnection) Unwrap() []error { return []error{e.err, ErrNoConnection} }

// NoLUN is an ErrNoLUN in the words of the wire, with what there is instead: units of a kind.
func NoLUN[N uint32 | uint64](why, kind string, there []N) error {
	const most = 16 // of several thousand that a target may have
	switch n := len(there); {
	case n == 0:
		why += fmt.Sprintf(", nor another %s that we may use", kind)
	case n == 1:
		why += fmt.Sprintf("; it has %s %d", kind, there[0])
	default:
		why += fmt.Sprintf("; it has %ss %s", kind, strings.Trim(strings.ReplaceAll(fmt.Sprint(there[:min(n, most)]), " ", ", "), "[]"))
		if n > most {
			why += fmt.Sprintf(" and %d more", n-most)
		}
	}
	return &noLUN{why}
}

type noLUN struct{ why string }

func (e *noLUN) Error() string { return e.why }

func (e *noLUN) Unwrap() error { return ErrNoLUN }
