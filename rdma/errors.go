package rdma

import (
	"errors"
	"fmt"

	"softiser/rdma/internal/wire"
)

// Sentinel errors. Errors returned by this package wrap one of these where a
// caller may want to branch on it.
var (
	ErrBusy      = errors.New("rdma: object is still in use")
	ErrClosed    = errors.New("rdma: object has been closed")
	ErrQueueFull = errors.New("rdma: work queue is full")
	ErrState     = errors.New("rdma: queue pair is not connected")
	ErrLimit     = errors.New("rdma: device limit reached")
	ErrInvalid   = errors.New("rdma: invalid argument")
	ErrRejected  = errors.New("rdma: connection rejected by the peer")
	ErrOverflow  = errors.New("rdma: completion queue overflow")
	ErrTimeout   = errors.New("rdma: the peer did not answer in time")
	ErrRefused   = errors.New("rdma: connection parameters refused")
)

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrInvalid, fmt.Sprintf(format, args...))
}

// TerminateError says that a connection ended by a Terminate message, or by an
// error for which one was due (RFC 5040 §4.8).
type TerminateError struct {
	Remote bool // the peer found the error and told us; otherwise we found it
	Layer  uint8
	EType  uint8
	Code   uint8
	Detail string // what was wrong, known at the side that found it
}

func (e *TerminateError) Error() string {
	c := wire.MakeCause(wire.Layer(e.Layer), e.EType, e.Code)
	who := "terminated the connection"
	if e.Remote {
		who = "peer terminated the connection"
	}
	if e.Detail != "" {
		return fmt.Sprintf("rdma: %s: %v: %s", who, c, e.Detail)
	}
	return fmt.Sprintf("rdma: %s: %v", who, c)
}

func terminateError(c wire.Cause, remote bool, detail string) *TerminateError {
	return &TerminateError{Remote: remote, Layer: uint8(c.Layer()), EType: c.EType(), Code: c.Code(), Detail: detail}
}

// RejectError carries the private data of a Reply that rejected the connection.
type RejectError struct{ PrivateData []byte }

func (e *RejectError) Error() string { return ErrRejected.Error() }

// Unwrap makes errors.Is(err, ErrRejected) true.
func (e *RejectError) Unwrap() error { return ErrRejected }
