package rdma

import (
	"errors"
	"fmt"
	"syscall"

	"softiser/rdma/internal/iwarp"
	"softiser/rdma/internal/roce"
	"softiser/rdma/internal/roce/cm"
	"softiser/rdma/internal/roce/mad"
	"softiser/rdma/internal/verbs"
	"softiser/rdma/internal/wire"
)

// Sentinel errors. Errors returned by this package wrap one of these where a
// caller may want to branch on it.
var (
	// ErrBusy: the object is still in use by another one; close that first.
	ErrBusy = verbs.ErrBusy
	// ErrClosed: the object was closed, or the connection aborted, by this side.
	ErrClosed = verbs.ErrClosed
	// ErrQueueFull: the work queue holds as many requests as it was made for.
	ErrQueueFull = verbs.ErrQueueFull
	// ErrState: the queue pair, or the connection request, is not in the state that the call needs.
	ErrState = verbs.ErrState
	// ErrLimit: the device has as many objects of the kind as DeviceConfig allows.
	ErrLimit = verbs.ErrLimit
	// ErrInvalid: an argument is wrong; nothing has been done.
	ErrInvalid = verbs.ErrInvalid
	// ErrRejected: the peer's ULP refused the connection; see RejectError.
	ErrRejected = verbs.ErrRejected
	// ErrOverflow: a completion queue was too short for what its queue pairs had
	// outstanding. Completions are lost; those queue pairs have ended.
	ErrOverflow = verbs.ErrOverflow
	// ErrTimeout: the peer did not answer, or did not close its side, in time.
	ErrTimeout = verbs.ErrTimeout
	// ErrRefused: this side does not want what the peer insists on, or the other way
	// round: CRC, markers, the start-up (RFC 5044 §7.1, RFC 6581 §9).
	ErrRefused = verbs.ErrRefused
)

func invalid(format string, args ...any) error { return verbs.Invalid(format, args...) }

// TerminateError says that a connection ended by a Terminate message, or by an
// error for which one was due (RFC 5040 §4.8).
type TerminateError struct {
	Remote bool   // the peer found the error and told us; otherwise we found it
	Layer  uint8  // 0 RDMAP, 1 DDP, 2 MPA (RFC 5040 figure 9)
	EType  uint8  // error type within the layer
	Code   uint8  // error code within the type (RFC 5040 §4.8, RFC 5041 §7.2, RFC 5044 §8)
	Detail string // what was wrong, known at the side that found it
}

// Error returns one sentence with the layer's word for the error, and the detail.
func (e *TerminateError) Error() string {
	t := iwarp.Terminated{Remote: e.Remote, Cause: wire.MakeCause(wire.Layer(e.Layer), e.EType, e.Code), Detail: e.Detail}
	return t.Error()
}

// NAKError says that a connection over RoCE ended because one side has refused a request
// of the other (IBA vol. 1 §9.7.5.2).
type NAKError struct {
	Remote bool   // the peer has refused a request of ours; otherwise we have one of its
	Code   uint8  // of the NAK: 1 invalid request, 2 remote access, 3 remote operational error
	Detail string // what was wrong, known at the side that found it
}

// Error returns one sentence with the refused operation and the reason.
func (e *NAKError) Error() string { return e.Detail }

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
	var n *roce.Refused
	if errors.As(err, &n) {
		return &NAKError{Remote: n.Remote, Code: n.Code(), Detail: n.Error()}
	}
	var c *cm.RejectError
	if errors.As(err, &c) {
		switch c.Reason {
		case mad.ReasonConsumer:
			return &RejectError{PrivateData: c.Private}
		case mad.ReasonInvalidServiceID:
			return fmt.Errorf("rdma: %v: %w", c.Peer, syscall.ECONNREFUSED)
		}
		return fmt.Errorf("%w: %v says: %v", ErrRefused, c.Peer, c.Reason)
	}
	return err
}

// RejectError carries the private data of a Reply that rejected the connection.
type RejectError struct{ PrivateData []byte }

// Error says that the peer has rejected the connection.
func (e *RejectError) Error() string { return ErrRejected.Error() }

// Unwrap makes errors.Is(err, ErrRejected) true.
func (e *RejectError) Unwrap() error { return ErrRejected }
