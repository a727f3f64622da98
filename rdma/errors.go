package rdma

import (
	"errors"

	"softiser/rdma/internal/iwarp"
	"softiser/rdma/internal/verbs"
	"softiser/rdma/internal/wire"
)

// Sentinel errors. Errors returned by this package wrap one of these where a
// caller may want to branch on it.
var (
	ErrBusy      = verbs.ErrBusy
	ErrClosed    = verbs.ErrClosed
	ErrQueueFull = verbs.ErrQueueFull
	ErrState     = verbs.ErrState
	ErrLimit     = verbs.ErrLimit
	ErrInvalid   = verbs.ErrInvalid
	ErrRejected  = verbs.ErrRejected
	ErrOverflow  = verbs.ErrOverflow
	ErrTimeout   = verbs.ErrTimeout
	ErrRefused   = verbs.ErrRefused
)

func invalid(format string, args ...any) error { return verbs.Invalid(format, args...) }

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
	t := iwarp.Terminated{Remote: e.Remote, Cause: wire.MakeCause(wire.Layer(e.Layer), e.EType, e.Code), Detail: e.Detail}
	return t.Error()
}

// public is an engine's error in the words of this package.
func public(err error) error {
	var t *iwarp.Terminated
	if errors.As(err, &t) {
		return &TerminateError{Remote: t.Remote, Layer: uint8(t.Cause.Layer()), EType: t.Cause.EType(), Code: t.Cause.Code(), Detail: t.Detail}
	}
	var r *iwarp.Rejected
	if errors.As(err, &r) {
		return &RejectError{PrivateData: r.Private}
	}
	return err
}

// RejectError carries the private data of a Reply that rejected the connection.
type RejectError struct{ PrivateData []byte }

func (e *RejectError) Error() string { return ErrRejected.Error() }

// Unwrap makes errors.Is(err, ErrRejected) true.
func (e *RejectError) Unwrap() error { return ErrRejected }
